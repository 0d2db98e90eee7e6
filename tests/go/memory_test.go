package tests

import (
	"sync"
	"syscall"
	"unsafe"
)

// memory is an allocator that counts.
type memory struct {
	mutex  sync.Mutex
	blocks map[unsafe.Pointer][]byte
	bytes  int
	limit  int // 0: none
	panics bool
}

func newMemory() *memory { return &memory{blocks: map[unsafe.Pointer][]byte{}} }

func (m *memory) Allocate(size, alignment uintptr) unsafe.Pointer {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if m.panics {
		panic("no more shelves")
	}
	if m.limit > 0 && m.bytes+int(size) > m.limit || alignment > 4096 {
		return nil
	}
	block, err := syscall.Mmap(-1, 0, int(size), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil
	}
	pointer := unsafe.Pointer(unsafe.SliceData(block))
	m.blocks[pointer] = block
	m.bytes += int(size)
	return pointer
}

func (m *memory) Free(pointer unsafe.Pointer, size, alignment uintptr) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	block := m.blocks[pointer]
	if uintptr(len(block)) != size {
		panic("another size than was allocated")
	}
	delete(m.blocks, pointer)
	m.bytes -= len(block)
	must(syscall.Munmap(block))
}

// held is how many bytes are allocated.
func (m *memory) held() int {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.bytes
}
