//! Memory that the host gives.

use std::alloc::{GlobalAlloc, Layout};
use std::os::raw::c_void;
use std::ptr;

use crate::call;

/// What the library's memory callbacks are given.
pub(crate) type Memory = Box<dyn GlobalAlloc + Send + Sync>;

fn layout(size: usize, alignment: usize) -> Option<Layout> {
    Layout::from_size_align(size.max(1), alignment).ok()
}

pub(crate) unsafe extern "C" fn alloc(user_data: *mut c_void, size: usize, alignment: usize) -> *mut c_void {
    let memory = &*user_data.cast::<Memory>();
    let Some(layout) = layout(size, alignment) else { return ptr::null_mut() };
    call::catch(|| memory.alloc(layout)).map_or(ptr::null_mut(), |block| block.cast())
}

pub(crate) unsafe extern "C" fn free(user_data: *mut c_void, block: *mut c_void, size: usize, alignment: usize) {
    let memory = &*user_data.cast::<Memory>();
    if let (false, Some(layout)) = (block.is_null(), layout(size, alignment)) {
        let _ = call::catch(|| memory.dealloc(block.cast(), layout));
    }
}

pub(crate) unsafe extern "C" fn destroy(user_data: *mut c_void) {
    let _ = call::catch(|| drop(Box::from_raw(user_data.cast::<Memory>())));
}
