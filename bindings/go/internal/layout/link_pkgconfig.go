//go:build !quire_uninstalled

package layout

// #cgo pkg-config: quire
import "C"
