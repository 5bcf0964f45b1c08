//! Models and training runs in safetensors files.
//!
//! Parameters and buffers stand under their dotted names, contiguous, in torch's shapes (a linear weight is
//! `[out, in]`), so torch and other readers of the format take them as they are. A training checkpoint adds the
//! optimizer's tensors under `optimizer/` and one metadata entry, `streamgrad`, with the numbers.
//!
//! A file is replaced whole, as [`file::write`] does: a crash leaves the old one or the new one. On load everything is
//! checked first; if anything is wrong nothing has changed in the model.
//!
//! ```
//! use models::{Module, checkpoint, mlp};
//! # fn main() -> device::Result<()> {
//! let device = device::Device::cpu();
//! let (model, other) = (mlp(&[64, 128, 10], 1, &device)?, mlp(&[64, 128, 10], 2, &device)?);
//! let path = std::env::temp_dir().join(format!("streamgrad-doc-{}.safetensors", std::process::id()));
//! checkpoint::save(&path, &model)?;
//! checkpoint::load(&path, &other)?;
//! let weights = |m: &dyn Module| m.parameters()[0].value().contiguous()?.to_vec::<f32>();
//! assert_eq!(weights(&model)?, weights(&other)?);
//! # std::fs::remove_file(&path).ok();
//! # Ok(())
//! # }
//! ```

use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::path::{Path, PathBuf};

use device::{DType, Device, Error, ErrorKind, Result, bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use tensor::Tensor;

use crate::data::{Position, little_endian, malformed};
use crate::{GradScalerState, Module, Optimizer, OptimizerState, file};

/// Where a training run is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Epochs that are done.
    pub epoch: u64,
    /// Optimizer steps that are done.
    pub step: u64,
    /// The run's seed.
    pub seed: u64,
    /// What its [`GradScaler`](crate::GradScaler) remembers, if it has one.
    pub scaler: Option<GradScalerState>,
    /// Where its [`DataLoader`](crate::DataLoader) is, if it has one.
    pub loader: Option<Position>,
}

/// Writes the parameters and buffers of `model` to `path`.
///
/// # Errors
/// As [`file::write`]; `Checkpoint` with the parameter's name if two share it, or one has an element that is not finite.
#[derive::located]
pub fn save(path: impl AsRef<Path>, model: &dyn Module) -> Result<()> {
    write(path.as_ref(), state_of(model)?, None)
}

/// Copies the parameters and buffers at `path` into those of `model`, in place.
///
/// An optimizer's state in the file is passed over.
///
/// # Errors
/// `Io` if the file cannot be read; `Format` if it is truncated or no safetensors file; `Checkpoint` with the
/// parameter's name if one is missing, unknown, of another shape or type, or has an element that is not finite, or a truth value
/// that is neither 0 nor 1. The model is unchanged then.
#[derive::located]
pub fn load(path: impl AsRef<Path>, model: &dyn Module) -> Result<()> {
    let file = Contents::read(path.as_ref())?;
    copy_into(&file.state_for(model)?)
}

/// Writes model, optimizer and progress to `path`, for [`load_training`].
///
/// # Errors
/// As [`save`].
#[derive::located]
pub fn save_training(
    path: impl AsRef<Path>,
    model: &dyn Module,
    optimizer: &dyn Optimizer,
    progress: Progress,
) -> Result<()> {
    let state = optimizer.state()?;
    let mut tensors = state_of(model)?;
    for (name, tensor) in &state.tensors {
        let name = format!("{OPTIMIZER}{name}");
        tensors.push((name.clone(), Bytes::checked(&name, tensor)?));
    }
    let Progress { epoch, step, seed, scaler, loader } = progress;
    let mut text = format!("epoch={epoch} step={step} seed={seed} optimizer={}", state.kind);
    if let Some(GradScalerState { scale, growth_tracker }) = scaler {
        text.push_str(&format!(" scale={scale} growth_tracker={growth_tracker}"));
    }
    if let Some(Position { epoch, batch }) = loader {
        text.push_str(&format!(" loader_epoch={epoch} loader_batch={batch}"));
    }
    for (name, value) in &state.options {
        // Rust prints a float with as many digits as bring the same bits back.
        text.push_str(&format!(" {OPTIMIZER}{name}={value}"));
    }
    write(path.as_ref(), tensors, Some(text))
}

/// Restores model and optimizer from a file of [`save_training`]: training goes on as if it had not stopped.
///
/// # Errors
/// As [`load`]; `Checkpoint` also if the file has no training state, or one of another kind of optimizer. Model
/// and optimizer are unchanged then.
#[derive::located]
pub fn load_training(
    path: impl AsRef<Path>,
    model: &dyn Module,
    optimizer: &mut dyn Optimizer,
) -> Result<Progress> {
    let file = Contents::read(path.as_ref())?;
    let loaded = file.state_for(model)?;
    let device = optimizer.parameters().first().map_or_else(Device::cpu, |p| p.value().device().clone());
    let (state, progress) = file.training(&device)?;
    // The optimizer checks its state before it takes any of it, and the parameters are checked by now.
    optimizer.load_state(&state)?;
    copy_into(&loaded)?;
    Ok(progress)
}

const OPTIMIZER: &str = "optimizer/";
const METADATA: &str = "streamgrad";
/// The entries of the metadata, beside the optimizer's options.
const ENTRIES: [&str; 8] =
    ["epoch", "step", "seed", "scale", "growth_tracker", "loader_epoch", "loader_batch", "optimizer"];

#[cold]
#[track_caller]
pub(crate) fn wrong(name: &str, detail: impl Display) -> Error {
    Error::new(ErrorKind::Checkpoint { name: name.into(), detail: detail.to_string().into() })
}

/// An error of [`wrong`] unless the state fits.
#[track_caller]
pub(crate) fn expect_fit(fits: bool, name: &str, detail: impl Display) -> Result<()> {
    if fits { Ok(()) } else { Err(wrong(name, detail)) }
}

fn copy_into(pairs: &[(Tensor, Tensor)]) -> Result<()> {
    pairs.iter().try_for_each(|(mine, loaded)| mine.copy_(loaded))
}

/// All that a file has of a model: parameters, then buffers.
pub fn state(model: &dyn Module) -> Vec<(String, Tensor)> {
    let parameters = model.named_parameters().into_iter().map(|(name, var)| (name, var.value().clone()));
    parameters.chain(model.named_buffers()).collect()
}

fn state_of(model: &dyn Module) -> Result<Vec<(String, Bytes)>> {
    let mut named: Vec<(String, Bytes)> = Vec::new();
    for (name, tensor) in state(model) {
        let is_new = named.iter().all(|(known, _)| *known != name);
        expect_fit(is_new, &name, "two parameters or buffers have this name")?;
        let is_free = !name.starts_with(OPTIMIZER);
        expect_fit(is_free, &name, format_args!("names may not start with {OPTIMIZER}"))?;
        let bytes = Bytes::checked(&name, &tensor)?;
        named.push((name, bytes));
    }
    Ok(named)
}

/// A tensor as the file has it: row-major, little-endian.
struct Bytes {
    dtype: Dtype,
    shape: Vec<usize>,
    data: Vec<u8>,
}

impl Bytes {
    fn of(tensor: &Tensor) -> Result<Self> {
        let known = DTYPES.iter().find(|(_, dtype)| *dtype == tensor.dtype());
        let (dtype, _) = *known.ok_or_else(|| Error::dtype_unsupported("checkpoint", tensor.dtype()))?;
        let data = little_endian(tensor.to_bytes()?, tensor.dtype());
        Ok(Bytes { dtype, shape: tensor.shape().into(), data })
    }

    /// Those of a tensor of this name, which has no element that a file may not have.
    fn checked(name: &str, tensor: &Tensor) -> Result<Self> {
        let bytes = Bytes::of(tensor)?;
        bytes.check_elements(name)?;
        Ok(bytes)
    }

    fn tensor(&self, name: &str, device: &Device) -> Result<Tensor> {
        let unsupported = || wrong(name, format_args!("elements of type {} are not supported", self.dtype));
        let dtype = dtype_of(self.dtype).ok_or_else(unsupported)?;
        Tensor::from_bytes(&little_endian(self.data.clone(), dtype), &self.shape, dtype, device)
    }

    fn view(&self) -> Result<TensorView<'_>, SafeTensorError> {
        TensorView::new(self.dtype, self.shape.clone(), &self.data)
    }

    /// Refuses elements that no training can go on from: numbers that are not finite, and bools other than 0 and 1.
    fn check_elements(&self, name: &str) -> Result<()> {
        let found = match self.dtype {
            Dtype::F32 => first_not_finite(&self.data, |bytes| f64::from(f32::from_le_bytes(bytes))),
            Dtype::F64 => first_not_finite(&self.data, f64::from_le_bytes),
            Dtype::BF16 => first_not_finite(&self.data, |bytes| f64::from(bf16::from_le_bytes(bytes))),
            Dtype::F16 => first_not_finite(&self.data, |bytes| f64::from(f16::from_le_bytes(bytes))),
            Dtype::BOOL => {
                let mut bytes = self.data.iter().enumerate();
                bytes.find(|(_, byte)| **byte > 1).map(|(element, byte)| (element, f64::from(*byte)))
            }
            _ => None,
        };
        found
            .map_or(Ok(()), |(element, value)| Err(wrong(name, format_args!("element {element} is {value}"))))
    }
}

fn first_not_finite<const N: usize>(data: &[u8], value: impl Fn([u8; N]) -> f64) -> Option<(usize, f64)> {
    let values = data.as_chunks::<N>().0.iter().map(|chunk| value(*chunk));
    values.enumerate().find(|(_, value)| !value.is_finite())
}

fn write(path: &Path, tensors: Vec<(String, Bytes)>, text: Option<String>) -> Result<()> {
    // One metadata entry only: the order of several would differ from run to run, and so would the file.
    let metadata = text.map(|text| HashMap::from([(METADATA.to_owned(), text)]));
    let views: Result<Vec<_>, SafeTensorError> =
        tensors.iter().map(|(name, bytes)| Ok((name, bytes.view()?))).collect();
    let bytes = views.and_then(|views| safetensors::serialize(views, metadata));
    file::write(path, &bytes.map_err(|e| malformed(path.display(), e))?)
}

/// A file's tensors and metadata, in memory and checked for form.
struct Contents {
    path: PathBuf,
    tensors: BTreeMap<String, Bytes>,
    text: Option<String>,
}

impl Contents {
    fn read(path: &Path) -> Result<Self> {
        let bytes = file::read(path)?;
        let damaged = |e: SafeTensorError| malformed(path.display(), e);
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(damaged)?;
        let text = header.metadata().as_ref().and_then(|entries| entries.get(METADATA).cloned());
        let file = SafeTensors::deserialize(&bytes).map_err(damaged)?;
        let bytes = |view: TensorView<'_>| Bytes {
            dtype: view.dtype(),
            shape: view.shape().into(),
            data: view.data().into(),
        };
        let tensors = file.iter().map(|(name, view)| (name.to_owned(), bytes(view))).collect();
        Ok(Contents { path: path.into(), tensors, text })
    }

    /// The new value for each parameter and buffer of `model`, once all of them are found to fit.
    fn state_for(&self, model: &dyn Module) -> Result<Vec<(Tensor, Tensor)>> {
        let named = state(model);
        let check = |(name, tensor): &(String, Tensor)| {
            let found = self.tensors.get(name).ok_or_else(|| wrong(name, "missing in the file"))?;
            let (shape, dtype) = (tensor.shape(), tensor.dtype());
            let detail = format_args!("shape {:?} in the file, {shape:?} in the model", found.shape);
            expect_fit(found.shape == shape, name, detail)?;
            let detail = format_args!("{} in the file, {dtype} in the model", found.dtype);
            expect_fit(dtype_of(found.dtype) == Some(dtype), name, detail)?;
            found.check_elements(name)?;
            Ok(found)
        };
        let checked = named.iter().map(check).collect::<Result<Vec<_>>>()?;
        let unknown = self
            .tensors
            .keys()
            .find(|name| !name.starts_with(OPTIMIZER) && !named.iter().any(|(known, _)| known == *name));
        if let Some(name) = unknown {
            return Err(wrong(name, "in the file, but not in the model"));
        }
        let load = |((name, tensor), found): (&(String, Tensor), &Bytes)| {
            Ok((tensor.clone(), found.tensor(name, tensor.device())?))
        };
        named.iter().zip(checked).map(load).collect()
    }

    fn training(&self, device: &Device) -> Result<(OptimizerState, Progress)> {
        let text = self.text.as_deref().ok_or_else(|| wrong("optimizer", "no training state in the file"))?;
        let mut state = OptimizerState::default();
        let mut entries = BTreeMap::new();
        for entry in text.split_whitespace() {
            let unknown = || self.malformed(format_args!("\"{entry}\" is not understood"));
            let (name, value) = entry.split_once('=').ok_or_else(unknown)?;
            if entries.insert(name, value).is_some() {
                return Err(self.malformed(format_args!("{name} is there more than once")));
            }
            if let Some(option) = name.strip_prefix(OPTIMIZER) {
                state.options.push((option.into(), self.parsed(name, value)?));
            } else if !ENTRIES.contains(&name) {
                return Err(unknown());
            }
        }
        let entry = |name: &'static str| {
            let missing = || self.malformed(format_args!("{name} is missing"));
            entries.get(name).copied().ok_or_else(missing)
        };
        let number = |name| self.parsed::<u64>(name, entry(name)?);
        let has = |names: [&str; 2]| names.iter().any(|name| entries.contains_key(name));
        let scaler = || -> Result<GradScalerState> {
            let scale = self.parsed("scale", entry("scale")?)?;
            Ok(GradScalerState { scale, growth_tracker: number("growth_tracker")? })
        };
        let loader = || -> Result<Position> {
            Ok(Position { epoch: number("loader_epoch")?, batch: number("loader_batch")? })
        };
        let progress = Progress {
            epoch: number("epoch")?,
            step: number("step")?,
            seed: number("seed")?,
            scaler: has(["scale", "growth_tracker"]).then(scaler).transpose()?,
            loader: has(["loader_epoch", "loader_batch"]).then(loader).transpose()?,
        };
        state.kind = entry("optimizer")?.to_owned();
        for (name, bytes) in &self.tensors {
            if let Some(short) = name.strip_prefix(OPTIMIZER) {
                bytes.check_elements(name)?;
                state.tensors.push((short.into(), bytes.tensor(name, device)?));
            }
        }
        Ok((state, progress))
    }

    fn malformed(&self, detail: impl Display) -> Error {
        malformed(self.path.display(), format_args!("metadata: {detail}"))
    }

    fn parsed<T: std::str::FromStr>(&self, name: &str, value: &str) -> Result<T> {
        value.parse().map_err(|_| self.malformed(format_args!("\"{name}={value}\" is not understood")))
    }
}

/// The types that a file may have.
const DTYPES: [(Dtype, DType); 7] = [
    (Dtype::F32, DType::F32),
    (Dtype::F64, DType::F64),
    (Dtype::BF16, DType::BF16),
    (Dtype::F16, DType::F16),
    (Dtype::I64, DType::I64),
    (Dtype::U8, DType::U8),
    (Dtype::BOOL, DType::Bool),
];

fn dtype_of(dtype: Dtype) -> Option<DType> {
    DTYPES.iter().find(|(known, _)| *known == dtype).map(|(_, dtype)| *dtype)
}

#[cfg(test)]
mod tests;
