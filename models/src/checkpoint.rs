//! Models and training runs in safetensors files.
//!
//! Parameters and buffers stand under their dotted names, contiguous, in torch's shapes (a linear weight is
//! `[out, in]`), so torch and other readers of the format take them as they are. What several modules share stands there once,
//! under its first name, and is found under each. A training checkpoint adds the optimizer's tensors under `optimizer/`, those of an
//! [`Extra`] under `extra/`, and one metadata entry, `streamgrad`, with the numbers.
//!
//! A file is replaced whole, as [`file::write`](device::file::write) does: a crash leaves the old one or the new one. On load everything is
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

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;

use device::{DType, Device, Error, ErrorKind, Result};
use tensor::{Generator, Tensor};

use crate::data::Position;
use crate::{GradScalerState, Module, Optimizer, OptimizerState};
use extra::EXTRA;
use format::{Contents, Elements, Named};

mod extra;
mod format;
mod load;

pub use extra::{Extra, ExtraValue};
pub use load::{LoadOptions, LoadReport};

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
/// As [`file::write`](device::file::write); `Checkpoint` with the parameter's name if two share it, or one has an element that is not finite; a buffer may have
/// infinite ones.
#[derive::located]
pub fn save(path: impl AsRef<Path>, model: &dyn Module) -> Result<()> {
    format::write(path.as_ref(), &state_of(model)?, None)
}

/// Copies the parameters and buffers at `path` into those of `model`, in place.
///
/// An optimizer's state in the file is passed over.
///
/// # Errors
/// `Io` if the file cannot be read; `Format` if it is truncated or no safetensors file; `Checkpoint` with the
/// names of all that are missing, unknown, of another shape or type, or with that of a parameter that has an element that is not
/// finite, or a truth value that is neither 0 nor 1. The model is unchanged then.
#[derive::located]
pub fn load(path: impl AsRef<Path>, model: &dyn Module) -> Result<()> {
    load_with(path, model, LoadOptions::default()).map(drop)
}

/// As [`load`], with options: names that differ, parts of a model or of a file, and conversion of types.
///
/// # Errors
/// As [`load`].
#[derive::located]
pub fn load_with(path: impl AsRef<Path>, model: &dyn Module, options: LoadOptions<'_>) -> Result<LoadReport> {
    let file = Contents::open(path.as_ref())?;
    let (pairs, report) = load::plan(&file, model, &options)?;
    copy_into(&pairs)?;
    Ok(report)
}

/// Opens a safetensors file, of which only the header is read.
///
/// ```
/// use models::{Linear, checkpoint};
/// # fn main() -> device::Result<()> {
/// # let dev = device::Device::cpu();
/// # let path = std::env::temp_dir().join(format!("streamgrad-read-{}.safetensors", std::process::id()));
/// checkpoint::save(&path, &Linear::new(4, 2, &dev)?)?;
/// let file = checkpoint::read(&path)?;
/// assert_eq!(file.names().collect::<Vec<_>>(), ["bias", "weight"]);
/// assert_eq!(file.shape("weight"), Some(&[2, 4][..]));
/// let weight = file.tensor("weight", &dev)?;
/// # assert_eq!(weight.shape(), [2, 4]);
/// # std::fs::remove_file(&path).ok();
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Io` if the file cannot be read; `Format` if it is truncated or no safetensors file.
#[derive::located]
pub fn read(path: impl AsRef<Path>) -> Result<Checkpoint> {
    Ok(Checkpoint(Contents::open(path.as_ref())?))
}

/// A safetensors file whose tensors are read one by one; see [`read`].
pub struct Checkpoint(Contents);

impl std::fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

#[derive::located]
impl Checkpoint {
    /// The names of its tensors, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.tensors.keys().map(String::as_str)
    }

    /// The shape of a tensor, if there is one of this name.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.0.tensors.get(name).map(|entry| &entry.shape[..])
    }

    /// The type of a tensor, if there is one of this name and the type is one that tensors have.
    pub fn dtype(&self, name: &str) -> Option<DType> {
        self.0.tensors.get(name).and_then(format::Entry::dtype)
    }

    /// The file's metadata: texts under names.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.0.metadata
    }

    /// Reads a tensor.
    ///
    /// # Errors
    /// `Checkpoint` if there is none of this name, or its type is not supported; `Io`; `OutOfMemory`.
    pub fn tensor(&self, name: &str, device: &Device) -> Result<Tensor> {
        self.0.tensor(name, Elements::Any, device)
    }
}

/// Writes model, optimizer, progress and this thread's default generator to `path`, for [`load_training`].
///
/// A tuple of models is one, and [`Groups`](crate::Groups) make one optimizer of several. What else a run remembers, such as its best
/// loss, is the [`Extra`] of [`save_training_with`].
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
    save_training_with(path, model, optimizer, progress, &Extra::default())
}

/// As [`save_training`], with named numbers and tensors beside the rest, for [`load_training_with`].
///
/// # Errors
/// As [`save`]; `Checkpoint` for a name of an extra number that is empty or has blanks or `=` in it.
#[derive::located]
pub fn save_training_with(
    path: impl AsRef<Path>,
    model: &dyn Module,
    optimizer: &dyn Optimizer,
    progress: Progress,
    extra: &Extra,
) -> Result<()> {
    let state = optimizer.state()?;
    let mut tensors = state_of(model)?;
    let (extra_tensors, extra_numbers) = extra.parts()?;
    tensors.extend(extra_tensors);
    let named =
        |(name, tensor): &(String, Tensor)| (format!("{OPTIMIZER}{name}"), tensor.clone(), Elements::Finite);
    tensors.extend(state.tensors.iter().map(named));
    let Progress { epoch, step, seed, scaler, loader } = progress;
    let [random_seed, random_op, random_children] = Generator::current().state();
    let mut text = format!("epoch={epoch} step={step} seed={seed} optimizer={}", state.kind);
    text.push_str(&format!(
        " random_seed={random_seed} random_op={random_op} random_children={random_children}"
    ));
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
    text.push_str(&extra_numbers);
    format::write(path.as_ref(), &tensors, Some((METADATA.to_owned(), text)))
}

/// Restores model, optimizer and this thread's default generator from a file of [`save_training`]: training goes on as if it had
/// not stopped. The thread of a rank keeps the seed of its rank.
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
    load_training_with(path, model, optimizer).map(|(progress, _)| progress)
}

/// As [`load_training`], with the numbers and tensors that [`save_training_with`] added; none if it did not.
///
/// # Errors
/// As [`load_training`].
#[derive::located]
pub fn load_training_with(
    path: impl AsRef<Path>,
    model: &dyn Module,
    optimizer: &mut dyn Optimizer,
) -> Result<(Progress, Extra)> {
    let file = Contents::open(path.as_ref())?;
    let (pairs, _) = load::plan(&file, model, &LoadOptions::default())?;
    let device = optimizer.parameters().first().map_or_else(Device::cpu, |p| p.value().device().clone());
    let Training { state, progress, generator, extra } = training(&file, &device)?;
    // The optimizer checks its state before it takes any of it, and the parameters are checked by now.
    optimizer.load_state(&state)?;
    copy_into(&pairs)?;
    if let Some(generator) = generator {
        Generator::restore(generator);
    }
    Ok((progress, extra))
}

const OPTIMIZER: &str = "optimizer/";
const METADATA: &str = "streamgrad";
/// The entries of the metadata, beside the optimizer's options.
const ENTRIES: [&str; 11] = [
    "epoch",
    "step",
    "seed",
    "scale",
    "growth_tracker",
    "loader_epoch",
    "loader_batch",
    "optimizer",
    "random_seed",
    "random_op",
    "random_children",
];

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

fn state_of(model: &dyn Module) -> Result<Vec<Named>> {
    let parameters = model.named_parameters().len();
    let mut named: Vec<Named> = Vec::new();
    for (number, (name, tensor)) in state(model).into_iter().enumerate() {
        let is_new = named.iter().all(|(known, ..)| *known != name);
        expect_fit(is_new, &name, "two parameters or buffers have this name")?;
        for taken in [OPTIMIZER, EXTRA] {
            expect_fit(!name.starts_with(taken), &name, format_args!("names may not start with {taken}"))?;
        }
        named.push((name, tensor, if number < parameters { Elements::Finite } else { Elements::Infinite }));
    }
    Ok(named)
}

/// What a file has beside the model.
struct Training {
    state: OptimizerState,
    progress: Progress,
    generator: Option<[u64; 3]>,
    extra: Extra,
}

fn training(file: &Contents, device: &Device) -> Result<Training> {
    let text = file
        .metadata
        .get(METADATA)
        .ok_or_else(|| wrong("optimizer", "no training state in the file; `load` reads a model alone"))?;
    let (mut state, mut extra) = (OptimizerState::default(), Extra::default());
    let mut entries = BTreeMap::new();
    for entry in text.split_whitespace() {
        let unknown = || file.malformed(format_args!("\"{entry}\" is not understood"));
        let (name, value) = entry.split_once('=').ok_or_else(unknown)?;
        if entries.insert(name, value).is_some() {
            return Err(file.malformed(format_args!("{name} is there more than once")));
        }
        if let Some(option) = name.strip_prefix(OPTIMIZER) {
            state.options.push((option.into(), parsed(file, name, value)?));
        } else if let Some(short) = name.strip_prefix(EXTRA) {
            extra.insert_number(short, value).ok_or_else(unknown)?;
        } else if !ENTRIES.contains(&name) {
            return Err(unknown());
        }
    }
    let entry = |name: &'static str| {
        let missing = || file.malformed(format_args!("{name} is missing"));
        entries.get(name).copied().ok_or_else(missing)
    };
    let number = |name| parsed::<u64>(file, name, entry(name)?);
    let has = |names: &[&str]| names.iter().any(|name| entries.contains_key(name));
    let scaler = || -> Result<GradScalerState> {
        let scale = parsed(file, "scale", entry("scale")?)?;
        Ok(GradScalerState { scale, growth_tracker: number("growth_tracker")? })
    };
    let loader = || -> Result<Position> {
        Ok(Position { epoch: number("loader_epoch")?, batch: number("loader_batch")? })
    };
    let generator = || -> Result<[u64; 3]> {
        Ok([number("random_seed")?, number("random_op")?, number("random_children")?])
    };
    let progress = Progress {
        epoch: number("epoch")?,
        step: number("step")?,
        seed: number("seed")?,
        scaler: has(&["scale", "growth_tracker"]).then(scaler).transpose()?,
        loader: has(&["loader_epoch", "loader_batch"]).then(loader).transpose()?,
    };
    let generator = has(&["random_seed", "random_op", "random_children"]).then(generator).transpose()?;
    state.kind = entry("optimizer")?.to_owned();
    for name in file.tensors.keys() {
        if let Some(short) = name.strip_prefix(OPTIMIZER) {
            state.tensors.push((short.into(), file.tensor(name, Elements::Finite, device)?));
        }
    }
    extra.insert_tensors(file, device)?;
    Ok(Training { state, progress, generator, extra })
}

fn parsed<T: std::str::FromStr>(file: &Contents, name: &str, value: &str) -> Result<T> {
    value.parse().map_err(|_| file.malformed(format_args!("\"{name}={value}\" is not understood")))
}

#[cfg(test)]
mod tests;
