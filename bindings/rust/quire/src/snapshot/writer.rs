//! Where a snapshot goes to.

use std::io::{self, ErrorKind, Write};
use std::os::raw::c_void;

use super::reader::guarded;
use crate::{call, sys};

/// The writer as C has it, good as long as the reference.
pub(super) fn raw(target: &mut &mut dyn Write) -> sys::quire_snapshot_writer {
    sys::quire_snapshot_writer {
        write: Some(write),
        commit: Some(commit),
        user_data: (target as *mut &mut dyn Write).cast(),
        ..call::init(sys::quire_snapshot_writer_init)
    }
}

unsafe extern "C" fn write(
    user_data: *mut c_void,
    bytes: *const c_void,
    n: usize,
    error: *mut sys::quire_error,
) -> i64 {
    let target = &mut *user_data.cast::<&mut dyn Write>();
    let bytes = std::slice::from_raw_parts(bytes.cast::<u8>(), n);
    guarded(&mut *error, || match target.write(bytes)? {
        0 => Err(io::Error::from(ErrorKind::WriteZero)),
        written => Ok(written as i64),
    })
}

unsafe extern "C" fn commit(user_data: *mut c_void, error: *mut sys::quire_error) -> i32 {
    let target = &mut *user_data.cast::<&mut dyn Write>();
    guarded(&mut *error, || target.flush().map(|()| 0)) as i32
}
