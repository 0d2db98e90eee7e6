//! How a model is loaded.

use std::path::PathBuf;

use crate::cancel::WatchFields;
use crate::{call, sys, ElementType, LoadMode, Result};

/// How a model is loaded; the default is what its files say, on the first usable device.
///
/// ```no_run
/// # fn run(runtime: quire::Runtime) -> quire::Result<()> {
/// use quire::{ModelOptions, Watch};
/// let options = ModelOptions { device: Some("cpu".into()), merge: vec![("lora".into(), 0.5)], ..Default::default() };
/// let model = runtime.load_model_with("path/to/model", &options, Watch::new())?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelOptions {
    /// How the files are read.
    pub load: Option<LoadMode>,
    /// What the projection matrices are kept as; `None`: each part as it is stored.
    pub weight_type: Option<ElementType>,
    /// What rows may be rounded to on the CPU: [`ElementType::Int8`] (the default) for quantised weights and
    /// [`ElementType::Bf16`] for those in bf16, [`ElementType::Bf16`] for the latter alone, or [`ElementType::F32`], which
    /// is exact and slower.
    pub activation_type: Option<ElementType>,
    /// Adapter directories that are merged into the weights, each with its scale.
    pub merge: Vec<(PathBuf, f64)>,
    /// The directory of an Activation Beacon plug-in for this model.
    pub beacon_path: Option<PathBuf>,
    /// The name of one of [`Runtime::devices`](crate::Runtime::devices); `None`: the first usable one that has room.
    pub device: Option<String>,
    /// A directory that keeps weights as the CPU multiplies with them: the first load writes a file there, later ones map
    /// it. Whoever shortens that file ends this process; deleting it is safe.
    pub packed_directory: Option<PathBuf>,
}

impl ModelOptions {
    /// Calls the function with the options as C has them.
    pub(crate) fn with_raw<R>(
        &self,
        watch: Option<WatchFields>,
        function: impl FnOnce(&sys::quire_model_options) -> R,
    ) -> Result<R> {
        let merge = self
            .merge
            .iter()
            .map(|(path, scale)| {
                let (path, path_len) = call::path(path)?;
                Ok(sys::quire_adapter_source { path, path_len, scale: *scale })
            })
            .collect::<Result<Vec<_>>>()?;
        let mut raw: sys::quire_model_options = call::init(sys::quire_model_options_init);
        raw.load = self.load.map_or(sys::QUIRE_LOAD_DEFAULT, LoadMode::raw);
        raw.weight_type = ElementType::or_default(self.weight_type);
        raw.activation_type = ElementType::or_default(self.activation_type);
        (raw.merge, raw.n_merge) = call::slice(&merge);
        if let Some(path) = &self.beacon_path {
            (raw.beacon_path, raw.beacon_path_len) = call::path(path)?;
        }
        if let Some(path) = &self.packed_directory {
            (raw.packed_directory, raw.packed_directory_len) = call::path(path)?;
        }
        (raw.device, raw.device_len) = call::option(&self.device);
        if let Some(watch) = watch {
            raw.cancel = watch.cancel;
            raw.progress = watch.progress;
            raw.progress_user_data = watch.user_data;
        }
        Ok(function(&raw))
    }
}
