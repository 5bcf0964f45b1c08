//! How a file's tensors become those of a model.

use std::fmt::Write;

use device::{DType, Result};
use tensor::Tensor;

use super::extra::EXTRA;
use super::format::{Contents, Elements, Entry};
use super::{OPTIMIZER, expect_fit, state, wrong};
use crate::Module;
use crate::module::aliases;

/// Names that an error lists.
const LISTED: usize = 20;

/// How [`load_with`](super::load_with) finds the tensors of a model in a file. The default wants the same names, shapes and types
/// on both sides.
///
/// ```
/// use models::{Linear, Module, checkpoint::{self, LoadOptions}};
/// # fn main() -> device::Result<()> {
/// # let dev = device::Device::cpu();
/// # let path = std::env::temp_dir().join(format!("streamgrad-load-{}.safetensors", std::process::id()));
/// // A file of a whole model, of which this one is the head.
/// checkpoint::save(&path, &(Linear::new(4, 8, &dev)?, Linear::new(8, 2, &dev)?))?;
/// let head = Linear::new(8, 2, &dev)?;
/// let options = LoadOptions { prefix: "1.", allow_unknown: true, ..LoadOptions::default() };
/// let report = checkpoint::load_with(&path, &head, options)?;
/// assert_eq!(report.loaded, ["weight", "bias"]);
/// assert_eq!(report.unknown, ["0.bias", "0.weight"]);
/// # std::fs::remove_file(&path).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Default)]
pub struct LoadOptions<'a> {
    /// What names in the file have in front of those of the model.
    pub prefix: &'a str,
    /// The name in the file, behind the prefix, for a name in the model; without it they are the same.
    pub rename: Option<&'a dyn Fn(&str) -> String>,
    /// Which names of the model are loaded; without it all are. The others stay as they are.
    pub filter: Option<&'a dyn Fn(&str) -> bool>,
    /// Whether names of the model may be missing in the file. They stay as they are.
    pub allow_missing: bool,
    /// Whether the file may have names that no part of the model takes.
    pub allow_unknown: bool,
    /// Whether floats are converted to the model's float type. A parameter that does not fit it, such as 1e39 in F32, is an error.
    pub convert: bool,
}

impl std::fmt::Debug for LoadOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let LoadOptions { prefix, allow_missing, allow_unknown, convert, .. } = self;
        f.debug_struct("LoadOptions")
            .field("prefix", prefix)
            .field("allow_missing", allow_missing)
            .field("allow_unknown", allow_unknown)
            .field("convert", convert)
            .finish_non_exhaustive()
    }
}

/// What a file gave to a model: names of the model that were loaded and that were missing, and names of the file that were not taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Names of the model with values of the file.
    pub loaded: Vec<String>,
    /// Names of the model that the file does not have.
    pub missing: Vec<String>,
    /// Names of the file that the model does not have.
    pub unknown: Vec<String>,
}

fn both_floats(entry: &Entry, own: &Tensor) -> bool {
    entry.dtype().is_some_and(DType::is_float) && own.dtype().is_float()
}

/// A name that does not fit, and why.
type Mismatch = (String, String);

/// The new value for each parameter and buffer of `model` that is loaded, once all of them are found to fit.
pub(super) fn plan(
    file: &Contents,
    model: &dyn Module,
    options: &LoadOptions<'_>,
) -> Result<(Vec<(Tensor, Tensor)>, LoadReport)> {
    let (parameters, aliases) = (model.named_parameters().len(), aliases(model));
    let in_file = |name: &str| {
        let name = options.rename.map_or_else(|| name.to_owned(), |rename| rename(name));
        format!("{}{name}", options.prefix)
    };
    let (mut report, mut wrong, mut taken) = (LoadReport::default(), Vec::<Mismatch>::new(), Vec::new());
    let mut found = Vec::new();
    for (number, (name, own)) in state(model).into_iter().enumerate() {
        // What modules share has a value under one of its names at least.
        let others = aliases.iter().filter(|[_, first]| *first == name).map(|[alias, _]| in_file(alias));
        let names: Vec<String> = [in_file(&name)].into_iter().chain(others).collect();
        taken.extend(names.iter().cloned());
        if options.filter.is_some_and(|keep| !keep(&name)) {
            continue;
        }
        let Some((source, entry)) = names.iter().find_map(|name| file.tensors.get_key_value(name)) else {
            if !options.allow_missing {
                wrong.push((name.clone(), "missing in the file".into()));
            }
            report.missing.push(name);
            continue;
        };
        if entry.shape != own.shape() {
            let detail = format!("shape {:?} in the file, {:?} in the model", entry.shape, own.shape());
            wrong.push((name, detail));
        } else if entry.dtype() != Some(own.dtype()) && !(options.convert && both_floats(entry, &own)) {
            let detail = format!("{} in the file, {} in the model", entry.dtype_name(), own.dtype());
            wrong.push((name, detail));
        } else {
            let elements = if number < parameters { Elements::Finite } else { Elements::Infinite };
            found.push((own, source, elements));
            report.loaded.push(name);
        }
    }
    let is_training = |name: &str| name.starts_with(OPTIMIZER) || name.starts_with(EXTRA);
    let is_taken = |name: &str| taken.iter().any(|taken| taken == name) || is_training(name);
    report.unknown = file.tensors.keys().filter(|name| !is_taken(name)).cloned().collect();
    if !options.allow_unknown {
        let detail = "in the file, but not in the model";
        wrong.extend(report.unknown.iter().map(|name| (name.clone(), detail.to_owned())));
    }
    check(&wrong, &report)?;
    let read = |(own, source, elements): (Tensor, &String, Elements)| -> Result<(Tensor, Tensor)> {
        let value = file.tensor(source, elements, own.device())?;
        if value.dtype() == own.dtype() {
            return Ok((own, value));
        }
        let value = value.to_dtype(own.dtype())?;
        let is_finite = elements != Elements::Finite || value.isfinite()?.all(&[], false)?.item::<bool>()?;
        expect_fit(is_finite, source, format_args!("an element is not finite in {}", own.dtype()))?;
        Ok((own, value))
    };
    Ok((found.into_iter().map(read).collect::<Result<_>>()?, report))
}

/// The error of all mismatches together.
fn check(mismatches: &[Mismatch], report: &LoadReport) -> Result<()> {
    let Some(((name, detail), others)) = mismatches.split_first() else { return Ok(()) };
    let mut detail = detail.clone();
    for (name, other) in &others[..others.len().min(LISTED)] {
        let _ = write!(detail, "; {name}: {other}");
    }
    if others.len() > LISTED {
        let _ = write!(detail, "; and {} more", others.len() - LISTED);
    }
    // The prefix with which all missing names would be there.
    let prefix = |missing: &String| {
        report.unknown.iter().filter_map(|name| name.strip_suffix(missing.as_str())).find(|prefix| {
            !prefix.is_empty()
                && report.missing.iter().all(|name| report.unknown.contains(&format!("{prefix}{name}")))
        })
    };
    if let Some(prefix) = report.missing.first().and_then(prefix) {
        let _ = write!(detail, "; names in the file begin with {prefix:?}, see `LoadOptions::prefix`");
    } else if !report.missing.is_empty() && report.loaded.is_empty() {
        detail.push_str("; no name is in both, as in a file of another model");
    }
    Err(wrong(name, detail))
}
