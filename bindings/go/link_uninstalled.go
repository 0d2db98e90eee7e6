//go:build quire_uninstalled

package quire

// Without pkg-config: CGO_CFLAGS says where quire/quire.h is (-I), CGO_LDFLAGS where the library is (-L).

// #cgo LDFLAGS: -lquire
import "C"
