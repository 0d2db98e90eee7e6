//go:build !quire_uninstalled

package quire

// #cgo pkg-config: quire
import "C"
