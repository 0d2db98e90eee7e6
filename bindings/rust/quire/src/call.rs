//! How C is called: statuses, results of any length, text that comes in.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::raw::c_char;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::ptr;

use crate::{sys, Error, Result};

/// Calls a function that takes a `quire_error`; its status where that is not a failure.
pub(crate) fn call(function: impl FnOnce(*mut sys::quire_error) -> sys::quire_status) -> Result<i32> {
    check_version()?;
    let mut error = MaybeUninit::<sys::quire_error>::uninit();
    let status = function(error.as_mut_ptr());
    if status >= 0 {
        return Ok(status);
    }
    // SAFETY: every call that is given an error writes all of it.
    Err(Error::new(unsafe { error.assume_init_ref() }))
}

/// The program may find another library than the one that it was linked with.
fn check_version() -> Result<()> {
    let (wanted, found) = (sys::QUIRE_VERSION, unsafe { sys::quire_get_version() });
    if has_abi_of(wanted, found) {
        return Ok(());
    }
    let text = |version: i32| format!("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
    let message = format!("version {}; this crate needs {}, or a later one with its ABI", text(found), text(wanted));
    Err(Error::unsupported(format!("libquire.so is of {message}")))
}

/// Until 1.0 a minor version may break the ABI, then a major one.
fn has_abi_of(wanted: i32, found: i32) -> bool {
    let unit = if wanted < 10000 { 100 } else { 10000 };
    found >= wanted && found / unit == wanted / unit
}

/// Runs what a callback is to do, whose panic must not go on through C; what it panicked with, if it did.
pub(crate) fn catch<R>(function: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(function)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let message = format!("panicked: {}", text.unwrap_or("no message"));
        // Dropping what it panicked with may panic again; what comes of that is leaked.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            std::mem::forget(again);
        }
        message
    })
}

/// The struct with its defaults, by its `_init` function.
pub(crate) fn init<T>(function: unsafe extern "C" fn(*mut T, usize)) -> T {
    let mut place = MaybeUninit::<T>::zeroed();
    // SAFETY: the `_init` functions write all of a struct of this size; zero is valid for each.
    unsafe {
        function(place.as_mut_ptr(), std::mem::size_of::<T>());
        place.assume_init()
    }
}

/// A struct that the function fills.
pub(crate) fn fill<T: Default>(function: impl FnOnce(*mut T, *mut sys::quire_error) -> i32) -> Result<T> {
    let mut filled = T::default();
    call(|error| function(&mut filled, error))?;
    Ok(filled)
}

/// A handle that the function makes.
pub(crate) fn make<T>(function: impl FnOnce(*mut *mut T, *mut sys::quire_error) -> i32) -> Result<*mut T> {
    let mut made = ptr::null_mut();
    call(|error| function(&mut made, error))?;
    Ok(made)
}

/// The result of a `buf, cap, *needed` function. `guess`: how many elements there may be; one call is enough where there
/// are no more. 0: where that is not known.
pub(crate) fn read<T: Copy>(
    guess: usize,
    mut function: impl FnMut(*mut T, usize, *mut usize, *mut sys::quire_error) -> i32,
) -> Result<Vec<T>> {
    let mut items = Vec::<T>::with_capacity(guess);
    loop {
        let (buffer, capacity) = match items.capacity() {
            0 => (ptr::null_mut(), 0),
            capacity => (items.as_mut_ptr(), capacity),
        };
        let mut needed = 0;
        let status = call(|error| function(buffer, capacity, &mut needed, error));
        if needed <= capacity {
            status?;
            // SAFETY: a call that succeeds with enough room wrote so many elements.
            unsafe { items.set_len(needed) };
            return Ok(items);
        }
        match status {
            Err(error) if error.status() != crate::Status::BufferTooSmall => return Err(error),
            _ => items
                .try_reserve_exact(needed)
                .map_err(|_| Error::out_of_memory(format!("no memory for a result of {needed} elements")))?,
        }
    }
}

/// The same for text.
pub(crate) fn read_text(
    guess: usize,
    mut function: impl FnMut(*mut c_char, usize, *mut usize, *mut sys::quire_error) -> i32,
) -> Result<String> {
    let bytes = read::<u8>(guess, |buffer, capacity, needed, error| function(buffer.cast(), capacity, needed, error))?;
    Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// A static, NUL-terminated text of the library.
pub(crate) fn static_text(text: *const c_char) -> &'static str {
    // SAFETY: the caller has it from a function that returns static text.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or_default()
}

/// An array of characters with a NUL behind the text, as the library fills it.
pub(crate) fn array_text(array: &[c_char]) -> String {
    let bytes: Vec<u8> = array.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Text that the library lends; NULL is none.
///
/// # Safety
/// `data` must be NULL or have `len` bytes.
pub(crate) unsafe fn lent_text(data: *const c_char, len: usize) -> String {
    if data.is_null() || len == 0 {
        return String::new();
    }
    String::from_utf8_lossy(std::slice::from_raw_parts(data.cast(), len)).into_owned()
}

/// Pointer and length of a text.
pub(crate) fn text(text: &str) -> (*const c_char, usize) {
    (text.as_ptr().cast(), text.len())
}

/// The same where there may be none: NULL.
pub(crate) fn option(value: &Option<String>) -> (*const c_char, usize) {
    value.as_deref().map_or((ptr::null(), 0), text)
}

/// Pointer and length of a slice; NULL where it is empty.
pub(crate) fn slice<T>(items: &[T]) -> (*const T, usize) {
    (if items.is_empty() { ptr::null() } else { items.as_ptr() }, items.len())
}

/// A path's bytes. They live as long as the path, and are UTF-8 if the path is.
#[cfg(unix)]
pub(crate) fn path(path: &Path) -> Result<(*const c_char, usize)> {
    use std::os::unix::ffi::OsStrExt;
    let bytes = path.as_os_str().as_bytes();
    Ok((bytes.as_ptr().cast(), bytes.len()))
}

/// A path's text.
#[cfg(not(unix))]
pub(crate) fn path(path: &Path) -> Result<(*const c_char, usize)> {
    match path.to_str() {
        Some(name) => Ok(text(name)),
        None => Err(Error::invalid(format!("{} is not Unicode", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A `buf, cap, *needed` function whose result is longer at each call.
    fn growing(buffer: *mut u8, capacity: usize, needed: *mut usize, error: *mut sys::quire_error, n: usize) -> i32 {
        // SAFETY: `read` gives what such a function of the library may write to.
        unsafe {
            *needed = n;
            if n <= capacity {
                buffer.write_bytes(b'x', n);
                return sys::QUIRE_OK;
            }
            let status = if capacity == 0 { sys::QUIRE_OK } else { sys::QUIRE_ERROR_BUFFER_TOO_SMALL };
            let message = [0; sys::QUIRE_ERROR_MESSAGE_BYTES as usize];
            error.write(sys::quire_error { code: status, os_error: 0, offset: -1, reserved: 0, message });
            status
        }
    }

    #[test]
    fn later_versions_with_the_same_abi_are_taken() {
        for (wanted, found) in [(100, 100), (100, 102), (10203, 10203), (10203, 10300)] {
            assert!(has_abi_of(wanted, found), "{wanted} {found}");
        }
        for (wanted, found) in [(102, 100), (100, 200), (100, 10000), (10203, 10202), (10203, 20300)] {
            assert!(!has_abi_of(wanted, found), "{wanted} {found}");
        }
    }

    #[test]
    fn results_that_grow_are_asked_for_again() {
        for (guess, expected) in [(0, 12), (4, 12), (9, 9), (20, 9)] {
            let mut lengths = [9, 10, 12].into_iter();
            let found = read(guess, |buffer, capacity, needed, error| {
                growing(buffer, capacity, needed, error, lengths.next().unwrap_or(12))
            });
            assert_eq!(found.unwrap().len(), expected);
        }
    }

    #[test]
    fn text_that_is_no_utf8_is_replaced() {
        let bytes = [b'a', 0xe9, 0, b'b'].map(|byte| byte as c_char);
        assert_eq!(array_text(&bytes), "a\u{fffd}");
        // SAFETY: four bytes.
        assert_eq!(unsafe { lent_text(bytes.as_ptr(), 4) }, "a\u{fffd}\0b");
        assert_eq!(unsafe { lent_text(ptr::null(), 0) }, "");
    }

    #[test]
    fn panics_are_caught() {
        assert_eq!(catch(|| 5), Ok(5));
        assert_eq!(catch(|| panic!("no {}", "way")), Err::<(), _>("panicked: no way".to_string()));
        assert_eq!(catch(|| std::panic::panic_any(5)), Err::<(), _>("panicked: no message".to_string()));
    }
}
