//! Where a snapshot comes from.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::raw::{c_char, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use crate::{call, sys, Error, Result};

/// Bytes that can be read in any order, on several threads at once, and do not change.
///
/// Memory and files are such bytes. What can only be read and sought, such as a member of an archive, is so inside a `Mutex`:
///
/// ```no_run
/// # fn run(model: quire::Model, entry: std::io::Cursor<Vec<u8>>) -> quire::Result<()> {
/// let session = model.load_session_from(std::sync::Mutex::new(entry), &Default::default())?;
/// # Ok(()) }
/// ```
pub trait ReadAt: Send + Sync {
    /// How many bytes there are.
    fn size(&self) -> io::Result<u64>;
    /// Reads bytes from `offset` on into the buffer, which is not empty; returns how many, at least 1.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
}

impl ReadAt for [u8] {
    fn size(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let begin = usize::try_from(offset).unwrap_or(usize::MAX).min(self.len());
        let n = buffer.len().min(self.len() - begin);
        buffer[..n].copy_from_slice(&self[begin..begin + n]);
        Ok(n)
    }
}

impl ReadAt for Vec<u8> {
    fn size(&self) -> io::Result<u64> {
        self.as_slice().size()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.as_slice().read_at(offset, buffer)
    }
}

impl<T: ReadAt + ?Sized> ReadAt for &T {
    fn size(&self) -> io::Result<u64> {
        (**self).size()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        (**self).read_at(offset, buffer)
    }
}

impl<T: ReadAt + ?Sized> ReadAt for Arc<T> {
    fn size(&self) -> io::Result<u64> {
        (**self).size()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        (**self).read_at(offset, buffer)
    }
}

#[cfg(unix)]
impl ReadAt for File {
    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(self, buffer, offset)
    }
}

impl<R: Read + Seek + Send> ReadAt for Mutex<R> {
    fn size(&self) -> io::Result<u64> {
        self.lock().unwrap_or_else(PoisonError::into_inner).seek(SeekFrom::End(0))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut reader = self.lock().unwrap_or_else(PoisonError::into_inner);
        reader.seek(SeekFrom::Start(offset))?;
        reader.read(buffer)
    }
}

/// The result, or -1 with what failed in `error`. A panic is a failure; what is interrupted is tried again.
pub(super) fn guarded(error: &mut sys::quire_error, mut function: impl FnMut() -> io::Result<i64>) -> i64 {
    loop {
        let (message, os_error) = match call::catch(&mut function) {
            Ok(Ok(result)) => return result,
            Ok(Err(failed)) if failed.kind() == ErrorKind::Interrupted => continue,
            Ok(Err(failed)) => (failed.to_string(), failed.raw_os_error().unwrap_or(0)),
            Err(panic) => (panic, 0),
        };
        let mut end = message.len().min(sys::QUIRE_ERROR_MESSAGE_BYTES as usize - 1);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        for (to, from) in error.message.iter_mut().zip(message[..end].bytes().chain([0])) {
            *to = from as c_char;
        }
        error.os_error = os_error;
        return -1;
    }
}

fn fields(size: io::Result<u64>) -> Result<sys::quire_snapshot_reader> {
    let size = size.map_err(|error| Error::io(&error))?;
    let n_bytes = i64::try_from(size).map_err(|_| Error::invalid(format!("a snapshot of {size} bytes")))?;
    Ok(sys::quire_snapshot_reader { n_bytes, ..call::init(sys::quire_snapshot_reader_init) })
}

/// For a call that reads before it returns: good as long as the reference.
pub(super) fn borrowed(reader: &&dyn ReadAt) -> Result<sys::quire_snapshot_reader> {
    let user_data = (reader as *const &dyn ReadAt).cast_mut().cast();
    Ok(sys::quire_snapshot_reader { read: Some(read_borrowed), user_data, ..fields(reader.size())? })
}

/// For sessions, which keep it. Until `keep` is called it owns the reader.
pub(super) struct Owned {
    raw: sys::quire_snapshot_reader,
    owned: bool,
}

type Kept = Box<dyn ReadAt>;

impl Owned {
    pub(super) fn new(reader: Kept) -> Result<Owned> {
        let raw = fields(reader.size())?;
        let user_data = Box::into_raw(Box::new(reader)).cast();
        let raw = sys::quire_snapshot_reader { read: Some(read_kept), destroy: Some(destroy), user_data, ..raw };
        Ok(Owned { raw, owned: true })
    }

    pub(super) fn raw(&self) -> *const sys::quire_snapshot_reader {
        &self.raw
    }

    /// The library has the reader, and will destroy it.
    pub(super) fn keep(&mut self) {
        self.owned = false;
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if self.owned {
            unsafe { destroy(self.raw.user_data) };
        }
    }
}

unsafe fn read(reader: &dyn ReadAt, offset: i64, buffer: *mut c_void, n: usize, error: *mut sys::quire_error) -> i64 {
    // The buffer's memory may never have been written; a `ReadAt` may look at what it is given.
    buffer.cast::<u8>().write_bytes(0, n);
    let buffer = std::slice::from_raw_parts_mut(buffer.cast::<u8>(), n);
    guarded(&mut *error, || reader.read_at(offset as u64, buffer).map(|n| n as i64))
}

unsafe extern "C" fn read_borrowed(
    user_data: *mut c_void,
    offset: i64,
    buffer: *mut c_void,
    n: usize,
    error: *mut sys::quire_error,
) -> i64 {
    read(*user_data.cast::<&dyn ReadAt>(), offset, buffer, n, error)
}

unsafe extern "C" fn read_kept(
    user_data: *mut c_void,
    offset: i64,
    buffer: *mut c_void,
    n: usize,
    error: *mut sys::quire_error,
) -> i64 {
    read(&**user_data.cast::<Kept>(), offset, buffer, n, error)
}

unsafe extern "C" fn destroy(user_data: *mut c_void) {
    let _ = call::catch(|| drop(Box::from_raw(user_data.cast::<Kept>())));
}
