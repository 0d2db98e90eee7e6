// Package cmalloc counts what C has allocated, for tests, which cannot use cgo themselves.
package cmalloc

// #include <malloc.h>
import "C"

// InUse is how many bytes of malloc's are in use.
func InUse() int64 {
	info := C.mallinfo2()
	return int64(info.uordblks) + int64(info.hblkhd)
}
