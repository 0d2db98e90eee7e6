//! Owned references to the library's objects.

use std::ptr::NonNull;

use crate::sys;

/// An object of the library that counts its references.
pub(crate) trait Object {
    /// # Safety
    /// `this` must be a living object.
    unsafe fn retain(this: *mut Self);
    /// # Safety
    /// The caller must own a reference, which is gone afterwards.
    unsafe fn release(this: *mut Self);
}

/// Owns one reference. Whether a type that has one may be shared between threads is that type's to say.
pub(crate) struct Handle<T: Object>(NonNull<T>);

// SAFETY: references may be added and dropped on any thread. The types around a handle say which calls are made.
unsafe impl<T: Object> Send for Handle<T> {}
unsafe impl<T: Object> Sync for Handle<T> {}

impl<T: Object> Handle<T> {
    /// Takes over a reference that a function of the library made.
    pub(crate) fn own(made: *mut T) -> Handle<T> {
        Handle(NonNull::new(made).expect("a call that succeeds makes what it was asked for"))
    }

    pub(crate) fn raw(&self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T: Object> Clone for Handle<T> {
    fn clone(&self) -> Handle<T> {
        unsafe { T::retain(self.raw()) };
        Handle(self.0)
    }
}

impl<T: Object> Drop for Handle<T> {
    fn drop(&mut self) {
        unsafe { T::release(self.raw()) };
    }
}

macro_rules! objects {
    ($($name:ident, $retain:ident, $release:ident;)*) => {$(
        impl Object for sys::$name {
            unsafe fn retain(this: *mut Self) {
                sys::$retain(this)
            }
            unsafe fn release(this: *mut Self) {
                sys::$release(this)
            }
        }
    )*};
}

objects! {
    quire_runtime, quire_runtime_retain, quire_runtime_release;
    quire_model, quire_model_retain, quire_model_release;
    quire_tokenizer, quire_tokenizer_retain, quire_tokenizer_release;
    quire_adapter, quire_adapter_retain, quire_adapter_release;
    quire_cancel, quire_cancel_retain, quire_cancel_release;
    quire_session, quire_session_retain, quire_session_release;
    quire_stream, quire_stream_retain, quire_stream_release;
    quire_store, quire_store_retain, quire_store_release;
}

/// `Debug` that says the type's name and nothing of the object, which has no state to print.
macro_rules! opaque_debug {
    ($($name:ident),*) => {$(
        impl std::fmt::Debug for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str(stringify!($name))
            }
        }
    )*};
}
pub(crate) use opaque_debug;
