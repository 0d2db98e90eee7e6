//! An allocator that counts, for programs that make it their own and for runtimes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// The system's memory, counted. It refuses what would exceed `limit` bytes.
pub struct Counting {
    allocations: AtomicU64,
    bytes: AtomicI64,
    limit: AtomicI64,
}

impl Counting {
    pub const fn new() -> Counting {
        Counting { allocations: AtomicU64::new(0), bytes: AtomicI64::new(0), limit: AtomicI64::new(i64::MAX) }
    }

    /// How often memory was asked for.
    pub fn allocations(&self) -> u64 {
        self.allocations.load(Ordering::Relaxed)
    }

    /// What is held now.
    pub fn bytes(&self) -> i64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub fn set_limit(&self, bytes: i64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }
}

impl Default for Counting {
    fn default() -> Counting {
        Counting::new()
    }
}

// SAFETY: memory is the system's; `realloc` and `alloc_zeroed` go through these two.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let size = layout.size() as i64;
        if self.bytes.fetch_add(size, Ordering::Relaxed) + size > self.limit.load(Ordering::Relaxed) {
            self.bytes.fetch_sub(size, Ordering::Relaxed);
            return std::ptr::null_mut();
        }
        self.allocations.fetch_add(1, Ordering::Relaxed);
        System.alloc(layout)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        self.bytes.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        System.dealloc(memory, layout);
    }
}
