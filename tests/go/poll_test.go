package tests

import (
	"syscall"
	"testing"
)

// readable waits until the file descriptor can be read.
func readable(t *testing.T, handle uintptr) {
	t.Helper()
	var set syscall.FdSet
	set.Bits[handle/64] = 1 << (handle % 64)
	n, err := syscall.Select(int(handle)+1, &set, nil, nil, &syscall.Timeval{Sec: 60})
	if err != nil || n != 1 {
		t.Fatalf("select gave %d, %v", n, err)
	}
}
