//! The declarations of `quire-sys` against the library, and what the crate `quire` does not call.

use std::mem::{size_of, MaybeUninit};
use std::ptr::{null, null_mut};

use quire::sys;
use quire_tests::tiny_model;

/// The size that a struct says after its init function was called.
fn initialised<T>(init: unsafe extern "C" fn(*mut T, usize)) -> (u32, T) {
    let mut place = MaybeUninit::<T>::uninit();
    // SAFETY: the function writes all of the struct, whose first field is its size.
    unsafe {
        init(place.as_mut_ptr(), size_of::<T>());
        (*place.as_ptr().cast::<u32>(), place.assume_init())
    }
}

macro_rules! sizes {
    ($($init:ident: $kind:ident,)*) => {$(
        assert_eq!(initialised::<sys::$kind>(sys::$init).0, size_of::<sys::$kind>() as u32);
        assert_eq!(sys::$kind::default().struct_size, size_of::<sys::$kind>() as u32);
    )*};
}

#[test]
fn init_functions_and_defaults_set_the_size() {
    sizes! {
        quire_runtime_options_init: quire_runtime_options,
        quire_model_options_init: quire_model_options,
        quire_quantize_options_init: quire_quantize_options,
        quire_adapter_options_init: quire_adapter_options,
        quire_strategy_options_init: quire_strategy_options,
        quire_session_options_init: quire_session_options,
        quire_edit_options_init: quire_edit_options,
        quire_edit_result_init: quire_edit_result,
        quire_snapshot_options_init: quire_snapshot_options,
        quire_snapshot_writer_init: quire_snapshot_writer,
        quire_snapshot_reader_init: quire_snapshot_reader,
        quire_store_options_init: quire_store_options,
        quire_store_match_init: quire_store_match,
        quire_chat_options_init: quire_chat_options,
        quire_stream_options_init: quire_stream_options,
        quire_event_init: quire_event,
        quire_position_view_init: quire_position_view,
    }
}

#[test]
fn the_library_is_of_this_version() {
    assert_eq!(quire::version_number(), sys::QUIRE_VERSION);
    assert_eq!(quire::version(), env!("CARGO_PKG_VERSION"));
}

/// A loop as in C, with references of the kinds that `Session` and `Stream` have only one of.
#[test]
fn calls_as_in_c() {
    let path = tiny_model().into_os_string().into_string().unwrap();
    let mut ids = [0i32; 4];
    let (mut needed, mut n_generated) = (0, 0);
    let mut error = MaybeUninit::<sys::quire_error>::uninit();
    let err = error.as_mut_ptr();
    let (mut runtime, mut model, mut session, mut stream) = (null_mut(), null_mut(), null_mut(), null_mut());
    let options =
        sys::quire_stream_options { max_tokens: 3, flags: sys::QUIRE_STREAM_IGNORE_EOS, ..Default::default() };
    let mut event = sys::quire_event::default();
    // SAFETY: handles are released once for each reference, and results have the sizes that are said.
    unsafe {
        assert_eq!(sys::quire_runtime_create(null(), &mut runtime, err), sys::QUIRE_OK);
        assert_eq!(sys::quire_model_load(runtime, path.as_ptr().cast(), path.len(), null(), &mut model, err), 0);
        assert_eq!(sys::quire_session_create(model, null(), &mut session, err), 0);
        assert_eq!(sys::quire_session_feed_tokens(session, [1, 300, 301, 302, 303].as_ptr(), 5, err), 0);
        let status = sys::quire_session_get_tokens(session, ids.as_mut_ptr(), ids.len(), &mut needed, err);
        assert_eq!((status, needed), (sys::QUIRE_ERROR_BUFFER_TOO_SMALL, 5));
        assert_eq!((error.assume_init_ref().code, ids), (status, [0; 4]));
        let status = sys::quire_session_feed_text(session, b"a\xe9\x9b".as_ptr().cast(), 3, 0, err);
        assert_eq!((status, error.assume_init_ref().offset), (sys::QUIRE_ERROR_INVALID_TEXT, 1));
        assert_eq!(sys::quire_stream_open(session, &options, &mut stream, err), 0);
        sys::quire_session_retain(session);
        sys::quire_session_release(session);
        sys::quire_stream_retain(stream);
        sys::quire_stream_release(stream);
        while sys::quire_stream_next(stream, -1, &mut event, err) == sys::QUIRE_OK {
            n_generated += i32::from(event.kind == sys::QUIRE_EVENT_TOKEN);
        }
        sys::quire_runtime_release(runtime);
        sys::quire_model_release(model);
        sys::quire_session_release(session);
        sys::quire_stream_release(stream);
    }
    assert_eq!(n_generated, 3);
}
