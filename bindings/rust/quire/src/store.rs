//! Stores of documents that were read.

use std::path::Path;

use crate::handle::{opaque_debug, Handle};
use crate::snapshot::raw_options;
use crate::text::flag;
use crate::{call, sys, Model, Result, Session, SessionOptions, Watch};

/// A directory of documents that were read, which processes share: each entry is a snapshot, found by the tokens of its
/// text. A clone is the same handle; any thread may use it.
///
/// ```no_run
/// # fn run(model: quire::Model, text: &str) -> quire::Result<()> {
/// use quire::{SessionOptions, Status, Store, StoreOptions, StreamOptions, Watch};
/// let store = Store::open("library", &StoreOptions { budget_bytes: 20_000_000_000, ..Default::default() })?;
/// let ids = model.tokenizer()?.encode(text, Default::default())?;
/// let options = SessionOptions::new("dca");
/// let (mut session, n_held) = match store.load(&model, &options, &ids) {
///     Ok((session, found)) => (session, found.n_tokens as usize),
///     Err(error) if error.status() == Status::NotFound => (model.session(&options)?, 0),
///     Err(error) => return Err(error),
/// };
/// session.feed_tokens(&ids[n_held..])?;
/// session.generate(&StreamOptions::new(0))?; // reads what is new
/// store.put(&session, "The book", Watch::new())?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Store(Handle<sys::quire_store>);

opaque_debug!(Store);

/// How a store is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreOptions {
    /// The directory must be a store already; nothing is made.
    pub must_exist: bool,
    /// For what this handle puts: of all entries together; 0: no limit.
    pub budget_bytes: i64,
}

/// What a store has of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreMatch {
    /// So many of its first tokens are in the entry.
    pub n_tokens: i64,
    /// So many of these need not be read again.
    pub n_computed: i64,
    /// Of the entry; empty: there is none.
    pub name: String,
    /// Why there is none; else empty.
    pub reason: String,
}

impl From<&sys::quire_store_match> for StoreMatch {
    fn from(raw: &sys::quire_store_match) -> StoreMatch {
        StoreMatch {
            n_tokens: raw.n_tokens,
            n_computed: raw.n_computed,
            name: call::array_text(&raw.name),
            reason: call::array_text(&raw.reason),
        }
    }
}

impl Store {
    /// Opens the store in a directory, which is made where it is missing.
    ///
    /// See [`sys::quire_store_open`].
    pub fn open(path: impl AsRef<Path>, options: &StoreOptions) -> Result<Store> {
        let (path, len) = call::path(path.as_ref())?;
        let options = sys::quire_store_options {
            flags: flag(options.must_exist, sys::QUIRE_STORE_MUST_EXIST),
            budget_bytes: options.budget_bytes,
            ..call::init(sys::quire_store_options_init)
        };
        let made = call::make(|out, error| unsafe { sys::quire_store_open(path, len, &options, out, error) })?;
        Ok(Store(Handle::own(made)))
    }

    /// Puts what the session has read there. An empty title: the entry keeps the one that it has. Where the session was
    /// loaded from an entry or put there, only what is new is written.
    ///
    /// See [`sys::quire_store_put`].
    pub fn put(&self, session: &Session, title: &str, watch: Watch<'_>) -> Result<StoreMatch> {
        self.put_as(session, title, false, watch)
    }

    /// The same, but all of the session is written, wherever its past is.
    pub fn put_whole(&self, session: &Session, title: &str, watch: Watch<'_>) -> Result<StoreMatch> {
        self.put_as(session, title, true, watch)
    }

    fn put_as(&self, session: &Session, title: &str, whole: bool, watch: Watch<'_>) -> Result<StoreMatch> {
        let (title, len) = call::text(title);
        let mut found = call::init(sys::quire_store_match_init);
        watch.during(|watch| {
            let options = raw_options(&watch, whole);
            call::call(|error| unsafe {
                sys::quire_store_put(self.0.raw(), session.raw(), title, len, &options, &mut found, error)
            })
        })?;
        Ok(StoreMatch::from(&found))
    }

    /// Looks for the entry that has most of a text, for such a session. Nothing that fits is a match without a name.
    ///
    /// See [`sys::quire_store_find`].
    pub fn find(&self, model: &Model, options: &SessionOptions, tokens: &[i32]) -> Result<StoreMatch> {
        let (ids, len) = call::slice(tokens);
        let mut found = call::init(sys::quire_store_match_init);
        options.with_raw(|raw| {
            call::call(|error| unsafe {
                sys::quire_store_find(self.0.raw(), model.0.raw(), raw, ids, len, &mut found, error)
            })
        })??;
        Ok(StoreMatch::from(&found))
    }

    /// A session that holds the first `n_tokens` of the text, as the match says; feed it the others. Fails with
    /// [`Status::NotFound`](crate::Status::NotFound), which says why, where there is nothing that fits.
    ///
    /// See [`sys::quire_store_load`].
    pub fn load(&self, model: &Model, options: &SessionOptions, tokens: &[i32]) -> Result<(Session, StoreMatch)> {
        let (ids, len) = call::slice(tokens);
        let mut found = call::init(sys::quire_store_match_init);
        let made = options.with_raw(|raw| {
            call::make(|out, error| unsafe {
                sys::quire_store_load(self.0.raw(), model.0.raw(), raw, ids, len, &mut found, out, error)
            })
        })??;
        Ok((Session::own(made), StoreMatch::from(&found)))
    }

    /// Removes an entry; sessions that have it open go on.
    ///
    /// See [`sys::quire_store_remove`].
    pub fn remove(&self, name: &str) -> Result<()> {
        let (name, len) = call::text(name);
        call::call(|error| unsafe { sys::quire_store_remove(self.0.raw(), name, len, error) })?;
        Ok(())
    }

    /// Reads all of an entry and compares its checksums.
    ///
    /// See [`sys::quire_store_verify`].
    pub fn verify(&self, name: &str, watch: Watch<'_>) -> Result<()> {
        let (name, len) = call::text(name);
        watch.during(|watch| {
            let options = raw_options(&watch, false);
            call::call(|error| unsafe { sys::quire_store_verify(self.0.raw(), name, len, &options, error) })
        })?;
        Ok(())
    }

    /// What is in the store, as JSON (`quire_store_describe` in `quire.h`).
    ///
    /// See [`sys::quire_store_describe`].
    pub fn describe(&self) -> Result<String> {
        call::read_text(0, |buffer, capacity, needed, error| unsafe {
            sys::quire_store_describe(self.0.raw(), buffer, capacity, needed, error)
        })
    }
}
