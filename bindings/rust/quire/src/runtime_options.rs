//! What a runtime is made of.

use std::alloc::GlobalAlloc;
use std::os::raw::{c_char, c_void};

use crate::allocator::{self, Memory};
use crate::{call, sys, LogLevel};

type Log = Box<dyn Fn(LogLevel, &str) + Send + Sync>;

/// What a [`Runtime`](crate::Runtime) is made of; zero, `None` and empty are the defaults.
///
/// ```no_run
/// use quire::{LogLevel, Runtime, RuntimeOptions};
///
/// let runtime = Runtime::new(RuntimeOptions {
///     n_threads: 4,
///     log: Some(Box::new(|level, message| eprintln!("{level:?}: {message}"))),
///     log_level: Some(LogLevel::Info),
///     kv_host_budget_bytes: 8_000_000_000,
///     ..Default::default()
/// })?;
/// # Ok::<(), quire::Error>(())
/// ```
#[derive(Default)]
pub struct RuntimeOptions {
    /// Compute threads, all created at once; 0: one for each usable core; at most 1024.
    pub n_threads: i32,
    /// Threads that move chunks between tiers, at most 64; 0: one; -1: none.
    pub n_io_threads: i32,
    /// The most talkative level wanted; `None`: warnings.
    pub log_level: Option<LogLevel>,
    /// Is told what happens, on any thread. It must not call Quire, save for dropping handles. If it panics, the line is lost.
    pub log: Option<Log>,
    /// How many lines of the log are kept for [`Runtime::take_log_line`](crate::Runtime::take_log_line); 0: none; at most 65536.
    pub n_kept_log_lines: i32,
    /// Memory for weights, KV cache and scratch; `None`: the system's. Any thread calls it. If it panics, there is no memory.
    pub allocator: Option<Box<dyn GlobalAlloc + Send + Sync>>,
    /// What the KV caches of all sessions may hold together in each device's memory; 0: no limit.
    pub kv_device_budget_bytes: i64,
    /// Likewise in the machine's memory.
    pub kv_host_budget_bytes: i64,
    /// Likewise in compressed memory.
    pub kv_compressed_budget_bytes: i64,
    /// Likewise in files.
    pub kv_file_budget_bytes: i64,
    /// Most bytes of whole chunks that are kept of sessions that are gone, for the next one whose text begins as theirs.
    pub prefix_cache_bytes: i64,
}

/// The options as C has them. Until `keep` is called it owns what the callbacks are given.
pub(crate) struct RawOptions {
    pub(crate) raw: sys::quire_runtime_options,
    owned: bool,
}

impl RuntimeOptions {
    pub(crate) fn into_raw(self) -> RawOptions {
        let mut raw = sys::quire_runtime_options {
            n_threads: self.n_threads,
            n_io_threads: self.n_io_threads,
            n_kept_log_lines: self.n_kept_log_lines,
            log_level: self.log_level.map_or(0, LogLevel::raw),
            kv_device_budget_bytes: self.kv_device_budget_bytes,
            kv_host_budget_bytes: self.kv_host_budget_bytes,
            kv_compressed_budget_bytes: self.kv_compressed_budget_bytes,
            kv_file_budget_bytes: self.kv_file_budget_bytes,
            prefix_cache_bytes: self.prefix_cache_bytes,
            ..call::init(sys::quire_runtime_options_init)
        };
        if let Some(log) = self.log {
            raw.log = Some(write_log);
            raw.log_user_data = Box::into_raw(Box::new(log)).cast();
            raw.log_destroy = Some(destroy_log);
        }
        if let Some(memory) = self.allocator {
            raw.alloc = Some(allocator::alloc);
            raw.free = Some(allocator::free);
            raw.alloc_user_data = Box::into_raw(Box::<Memory>::new(memory)).cast();
            raw.alloc_destroy = Some(allocator::destroy);
        }
        RawOptions { raw, owned: true }
    }
}

impl RawOptions {
    /// The library has what the callbacks are given, and will destroy it.
    pub(crate) fn keep(mut self) {
        self.owned = false;
    }
}

impl Drop for RawOptions {
    fn drop(&mut self) {
        let raw = &self.raw;
        for (destroy, user_data) in [(raw.log_destroy, raw.log_user_data), (raw.alloc_destroy, raw.alloc_user_data)] {
            if let (true, Some(destroy)) = (self.owned, destroy) {
                unsafe { destroy(user_data) };
            }
        }
    }
}

unsafe extern "C" fn write_log(user_data: *mut c_void, level: i32, message: *const c_char, message_len: usize) {
    let log = &*user_data.cast::<Log>();
    let _ = call::catch(|| log(level.into(), &call::lent_text(message, message_len)));
}

unsafe extern "C" fn destroy_log(user_data: *mut c_void) {
    let _ = call::catch(|| drop(Box::from_raw(user_data.cast::<Log>())));
}
