//! Runtimes: threads, memory, devices, and what can be asked of a model that is not loaded.

use std::path::Path;

use crate::handle::{opaque_debug, Handle};
use crate::record::record;
use crate::{
    call, sys, DeviceKind, LogLevel, Model, ModelOptions, Result, RuntimeOptions, SessionOptions, Tokenizer, Watch,
};

/// Threads, memory and log; everything else hangs off one. A clone is the same runtime.
#[derive(Clone)]
pub struct Runtime(pub(crate) Handle<sys::quire_runtime>);

opaque_debug!(Runtime);

record! {
    /// What a runtime keeps of sessions that are gone.
    pub struct RuntimeStats of quire_runtime_stats {
        /// Bytes kept now, whatever tier they lie in.
        prefix_cache_bytes: i64,
        /// Of so many texts.
        prefix_cache_texts: i64,
        /// Tokens of kept chunks that sessions took over since creation.
        prefix_cache_tokens: i64,
    }
}

record! {
    /// What a model and a session would take.
    pub struct MemoryPlan of quire_memory_plan {
        /// Allocated for the model.
        weight_bytes: i64,
        /// Of its files, mapped while it lives.
        mapped_bytes: i64,
        /// Activations and working memory.
        scratch_bytes: i64,
        /// Of a token that is held.
        kv_bytes_per_token: i64,
        /// What is kept for choosing chunks.
        representation_bytes: i64,
        /// Tokens the strategy can serve; `i64::MAX`: no limit.
        reach: i64,
        /// Most bytes of the KV cache on the device.
        kv_device_bytes: i64,
        /// Likewise in the machine's memory.
        kv_host_bytes: i64,
        /// Likewise in compressed memory.
        kv_compressed_bytes: i64,
        /// Likewise in a file.
        kv_file_bytes: i64,
    }
}

/// A line of the log that was kept ([`RuntimeOptions::n_kept_log_lines`]).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogLine {
    /// How important it is.
    pub level: LogLevel,
    /// What it says.
    pub text: String,
    /// Lines lost between the one before and this one, for want of room.
    pub n_lost: i64,
}

/// A device of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Device {
    /// For [`ModelOptions::device`]: "cpu", "cuda:0".
    pub name: String,
    /// What it is.
    pub kind: DeviceKind,
    /// Whether a model can run on it.
    pub usable: bool,
    /// For a person.
    pub description: String,
    /// Why no model can run on it; empty where one can.
    pub obstacle: String,
    /// Its memory; 0: not known.
    pub memory_bytes: i64,
    /// Of that, now; 0: not known.
    pub free_bytes: i64,
}

impl From<&sys::quire_device_info> for Device {
    fn from(raw: &sys::quire_device_info) -> Device {
        Device {
            name: call::array_text(&raw.name),
            kind: raw.kind.into(),
            usable: raw.flags & sys::QUIRE_DEVICE_USABLE != 0,
            description: call::array_text(&raw.description),
            obstacle: call::array_text(&raw.obstacle),
            memory_bytes: raw.memory_bytes,
            free_bytes: raw.free_bytes,
        }
    }
}

impl Runtime {
    /// Starts the threads.
    ///
    /// See [`sys::quire_runtime_create`].
    pub fn new(options: RuntimeOptions) -> Result<Runtime> {
        let options = options.into_raw();
        let made = call::make(|out, error| unsafe { sys::quire_runtime_create(&options.raw, out, error) })?;
        options.keep();
        Ok(Runtime(Handle::own(made)))
    }

    /// Cancels everything that runs, frees all sessions' memory, ends all threads and waits for them. Calls on what
    /// belonged to it return [`Status::Closed`](crate::Status::Closed) afterwards. Not from a closure that Quire calls.
    ///
    /// See [`sys::quire_runtime_close`].
    pub fn close(&self) -> Result<()> {
        call::call(|error| unsafe { sys::quire_runtime_close(self.0.raw(), error) })?;
        Ok(())
    }

    /// What it keeps of sessions that are gone.
    ///
    /// See [`sys::quire_runtime_get_stats`].
    pub fn stats(&self) -> Result<RuntimeStats> {
        let raw = call::fill(|stats, error| unsafe { sys::quire_runtime_get_stats(self.0.raw(), stats, error) })?;
        Ok(RuntimeStats::from(&raw))
    }

    /// Takes the oldest line of the log that was kept and not taken yet; `None`: there is none.
    ///
    /// See [`sys::quire_runtime_take_log_line`].
    pub fn take_log_line(&self) -> Result<Option<LogLine>> {
        let (mut level, mut n_lost) = (0, 0);
        let text = call::read_text(0, |buffer, capacity, needed, error| unsafe {
            sys::quire_runtime_take_log_line(self.0.raw(), &mut level, &mut n_lost, buffer, capacity, needed, error)
        })?;
        Ok((level != 0).then(|| LogLine { level: level.into(), text, n_lost }))
    }

    /// The devices of this machine, unusable ones included, in the order in which "auto" prefers them.
    pub fn devices(&self) -> Result<Vec<Device>> {
        let mut count = 0;
        call::call(|error| unsafe { sys::quire_runtime_get_device_count(self.0.raw(), &mut count, error) })?;
        let device = |index| {
            call::fill(|info, error| unsafe { sys::quire_runtime_get_device_info(self.0.raw(), index, info, error) })
                .map(|raw| Device::from(&raw))
        };
        (0..count).map(device).collect()
    }

    /// Loads a Hugging Face directory or a GGUF file, and waits until it is loaded.
    pub fn load_model(&self, path: impl AsRef<Path>) -> Result<Model> {
        self.load_model_with(path, &ModelOptions::default(), Watch::new())
    }

    /// The same with options, watched.
    ///
    /// See [`sys::quire_model_load`].
    pub fn load_model_with(&self, path: impl AsRef<Path>, options: &ModelOptions, watch: Watch<'_>) -> Result<Model> {
        let (path, len) = call::path(path.as_ref())?;
        let load = |raw: &sys::quire_model_options| {
            call::make(|out, error| unsafe { sys::quire_model_load(self.0.raw(), path, len, raw, out, error) })
                .map(|made| Model(Handle::own(made)))
        };
        watch.during(|watch| options.with_raw(Some(watch), load))?
    }

    /// The tokenizer of a model directory, a `tokenizer.model`, a `tokenizer.json` or a GGUF file, without weights.
    ///
    /// See [`sys::quire_tokenizer_load`].
    pub fn load_tokenizer(&self, path: impl AsRef<Path>) -> Result<Tokenizer> {
        let (path, len) = call::path(path.as_ref())?;
        let made = call::make(|out, error| unsafe { sys::quire_tokenizer_load(self.0.raw(), path, len, out, error) })?;
        Ok(Tokenizer(Handle::own(made)))
    }

    /// Whether a session of the model in `path` would work; only its small files are read. Adapters cannot be given.
    ///
    /// See [`sys::quire_runtime_check_session`].
    pub fn check_session(&self, path: impl AsRef<Path>, model: &ModelOptions, session: &SessionOptions) -> Result<()> {
        self.planned(path.as_ref(), model, session, |path, len, model, session| {
            call::call(|error| unsafe {
                sys::quire_runtime_check_session(self.0.raw(), path, len, model, session, error)
            })
            .map(drop)
        })
    }

    /// The canonical strategy that such a session would have.
    ///
    /// See [`sys::quire_runtime_describe_strategy`].
    pub fn describe_strategy(
        &self,
        path: impl AsRef<Path>,
        model: &ModelOptions,
        session: &SessionOptions,
    ) -> Result<String> {
        self.planned(path.as_ref(), model, session, |path, len, model, session| {
            call::read_text(256, |buffer, capacity, needed, error| unsafe {
                let runtime = self.0.raw();
                sys::quire_runtime_describe_strategy(
                    runtime, path, len, model, session, buffer, capacity, needed, error,
                )
            })
        })
    }

    /// What the model in `path` and a session of `n_tokens` would take; only headers of files are read.
    ///
    /// See [`sys::quire_runtime_plan_memory`].
    ///
    /// ```no_run
    /// # fn run(runtime: quire::Runtime) -> quire::Result<()> {
    /// use quire::SessionOptions;
    /// let plan = runtime.plan_memory("model", &Default::default(), &SessionOptions::new("dca"), 100_000)?;
    /// println!("{} bytes of weights, {} of KV cache", plan.weight_bytes, plan.kv_host_bytes);
    /// # Ok(()) }
    /// ```
    pub fn plan_memory(
        &self,
        path: impl AsRef<Path>,
        model: &ModelOptions,
        session: &SessionOptions,
        n_tokens: i64,
    ) -> Result<MemoryPlan> {
        self.planned(path.as_ref(), model, session, |path, len, model, session| {
            call::fill(|plan, error| unsafe {
                sys::quire_runtime_plan_memory(self.0.raw(), path, len, model, session, n_tokens, plan, error)
            })
            .map(|raw: sys::quire_memory_plan| MemoryPlan::from(&raw))
        })
    }

    fn planned<R>(
        &self,
        path: &Path,
        model: &ModelOptions,
        session: &SessionOptions,
        function: impl FnOnce(
            *const std::os::raw::c_char,
            usize,
            &sys::quire_model_options,
            &sys::quire_session_options,
        ) -> Result<R>,
    ) -> Result<R> {
        let (path, len) = call::path(path)?;
        model.with_raw(None, |model| session.with_raw(|session| function(path, len, model, session))?)?
    }
}
