//! Writing models as quantised GGUF files.

use std::path::Path;

use crate::{call, sys, Result, Watch};

/// How a model is quantised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuantizeOptions {
    /// One of [`quantizations`]; `None`: "q4_k_m".
    pub recipe: Option<String>,
    /// 0: one for each usable core; at most 1024.
    pub n_threads: i32,
}

/// The names of the recipes that [`quantize`] knows.
///
/// See [`sys::quire_get_quantizations`].
pub fn quantizations() -> Vec<&'static str> {
    call::static_text(unsafe { sys::quire_get_quantizations() }).split(", ").collect()
}

/// Writes a model to a GGUF file, which appears when it is complete; one that is there is replaced.
///
/// See [`sys::quire_model_quantize`].
///
/// ```no_run
/// use quire::{quantize, QuantizeOptions, Watch};
/// let options = QuantizeOptions { recipe: Some("q8_0".into()), ..Default::default() };
/// quantize("path/to/model", "model.gguf", &options, Watch::new())?;
/// # Ok::<(), quire::Error>(())
/// ```
pub fn quantize(
    path: impl AsRef<Path>,
    out_path: impl AsRef<Path>,
    options: &QuantizeOptions,
    watch: Watch<'_>,
) -> Result<()> {
    let (path, len) = call::path(path.as_ref())?;
    let (out_path, out_len) = call::path(out_path.as_ref())?;
    let (recipe, recipe_len) = call::option(&options.recipe);
    watch.during(|watch| {
        let options = sys::quire_quantize_options {
            n_threads: options.n_threads,
            recipe,
            recipe_len,
            cancel: watch.cancel,
            progress: watch.progress,
            progress_user_data: watch.user_data,
            ..call::init(sys::quire_quantize_options_init)
        };
        call::call(|error| unsafe { sys::quire_model_quantize(path, len, out_path, out_len, &options, error) })
    })?;
    Ok(())
}
