//! Watching and stopping long calls.

use std::any::Any;
use std::os::raw::c_void;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};

use crate::handle::{opaque_debug, Handle};
use crate::{call, sys, Result};

/// Stops the long calls that were given it. A clone is the same switch.
///
/// ```no_run
/// use quire::{Cancel, Watch};
/// # fn run(runtime: quire::Runtime) -> quire::Result<()> {
/// let cancel = Cancel::new()?;
/// let switch = cancel.clone();
/// std::thread::spawn(move || switch.trigger());
/// let loaded = runtime.load_model_with("path/to/model", &Default::default(), Watch::new().cancel(&cancel));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Cancel(Handle<sys::quire_cancel>);

opaque_debug!(Cancel);

impl Cancel {
    /// A switch that was not triggered.
    ///
    /// See [`sys::quire_cancel_create`].
    pub fn new() -> Result<Cancel> {
        Ok(Cancel(Handle::own(call::make(|out, error| unsafe { sys::quire_cancel_create(out, error) })?)))
    }

    /// Asks the calls to stop, now and later: it stays triggered. Any thread, callbacks included.
    ///
    /// See [`sys::quire_cancel_trigger`].
    pub fn trigger(&self) {
        unsafe { sys::quire_cancel_trigger(self.0.raw()) }
    }
}

/// How a long call is watched and stopped; both are optional.
///
/// The function is called on the thread of the call with the bytes that are done and those in all. It must not call
/// Quire, save for [`Cancel::trigger`]. If it panics it is not called again, the call is cancelled (by the switch that it was
/// given, if there is one), and the panic goes on when it has returned; what the call made is dropped.
///
/// ```no_run
/// use quire::Watch;
/// # fn run(runtime: quire::Runtime) -> quire::Result<()> {
/// let mut report = |done, total| eprint!("\r{} %", 100 * done / i64::max(total, 1));
/// let model = runtime.load_model_with("path/to/model", &Default::default(), Watch::new().progress(&mut report))?;
/// # Ok(()) }
/// ```
#[derive(Default)]
pub struct Watch<'a> {
    cancel: Option<&'a Cancel>,
    progress: Option<&'a mut dyn FnMut(i64, i64)>,
}

impl<'a> Watch<'a> {
    /// Nothing is watched, and nothing stops the call.
    pub fn new() -> Watch<'a> {
        Watch::default()
    }

    /// The call returns [`Status::Cancelled`](crate::Status::Cancelled) once this is triggered.
    pub fn cancel(mut self, cancel: &'a Cancel) -> Watch<'a> {
        self.cancel = Some(cancel);
        self
    }

    /// The function is told how far the call is.
    pub fn progress(mut self, progress: &'a mut dyn FnMut(i64, i64)) -> Watch<'a> {
        self.progress = Some(progress);
        self
    }

    /// Makes the call, which puts the three fields into its options.
    pub(crate) fn during<R>(self, function: impl FnOnce(WatchFields) -> R) -> R {
        let cancel = match self.cancel {
            None if self.progress.is_some() => Cancel::new().ok(),
            given => given.cloned(),
        };
        let mut watched = Watched { progress: self.progress, cancel, panic: None };
        let result = function(WatchFields {
            cancel: watched.cancel.as_ref().map_or(std::ptr::null_mut(), |cancel| cancel.0.raw()),
            progress: watched.progress.is_some().then_some(report as _),
            user_data: (&mut watched as *mut Watched<'_>).cast(),
        });
        match watched.panic {
            Some(panic) => resume_unwind(panic),
            None => result,
        }
    }
}

/// What options structs have of a watch. The pointers are good while the call lasts.
pub(crate) struct WatchFields {
    pub(crate) cancel: *mut sys::quire_cancel,
    pub(crate) progress: Option<sys::quire_progress_callback>,
    pub(crate) user_data: *mut c_void,
}

struct Watched<'a> {
    progress: Option<&'a mut dyn FnMut(i64, i64)>,
    cancel: Option<Cancel>,
    panic: Option<Box<dyn Any + Send>>,
}

unsafe extern "C" fn report(user_data: *mut c_void, done: i64, total: i64) {
    let watched = &mut *user_data.cast::<Watched<'_>>();
    let Watched { progress: Some(progress), panic: None, .. } = watched else { return };
    watched.panic = catch_unwind(AssertUnwindSafe(|| progress(done, total))).err();
    if let (Some(_), Some(cancel)) = (&watched.panic, &watched.cancel) {
        cancel.trigger();
    }
}
