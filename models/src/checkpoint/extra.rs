//! What a training run remembers beside its model, optimizer and progress.

use std::collections::BTreeMap;

use device::{Device, Result};
use tensor::Tensor;

use super::format::{Contents, Elements, Named};
use super::{expect_fit, wrong};

/// Names of extra values in a file begin with this.
pub(super) const EXTRA: &str = "extra/";

fn in_file(name: &str) -> String {
    format!("{EXTRA}{name}")
}

/// Named numbers and tensors in a training checkpoint, for [`save_training_with`](super::save_training_with).
///
/// ```
/// use models::{Module, Sgd, checkpoint::{self, Extra, Progress}, mlp};
/// # fn main() -> device::Result<()> {
/// # let dev = device::Device::cpu();
/// # let path = std::env::temp_dir().join(format!("streamgrad-extra-{}.safetensors", std::process::id()));
/// let model = mlp(&[2, 1], 0, &dev)?;
/// let mut sgd = Sgd::new(model.parameters(), 0.1)?;
/// let extra = Extra::default().with("best_loss", 0.3).with("patience", 4_u64);
/// checkpoint::save_training_with(&path, &model, &sgd, Progress::default(), &extra)?;
/// let (progress, extra) = checkpoint::load_training_with(&path, &model, &mut sgd)?;
/// assert_eq!((extra.float("best_loss")?, extra.integer("patience")?), (0.3, 4));
/// # std::fs::remove_file(&path).ok();
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Extra {
    values: BTreeMap<String, ExtraValue>,
}

/// A value of an [`Extra`].
#[derive(Clone, Debug)]
pub enum ExtraValue {
    /// A number, NaN and infinity included.
    Float(f64),
    /// A count.
    Integer(u64),
    /// A tensor with any elements.
    Tensor(Tensor),
}

macro_rules! values {
    ($($type:ty => $variant:ident),+) => {
        $(impl From<$type> for ExtraValue {
            fn from(value: $type) -> Self {
                ExtraValue::$variant(value)
            }
        })+
    };
}

values!(f64 => Float, u64 => Integer, Tensor => Tensor);

impl ExtraValue {
    fn kind(&self) -> &'static str {
        match self {
            ExtraValue::Float(_) => "a float",
            ExtraValue::Integer(_) => "an integer",
            ExtraValue::Tensor(_) => "a tensor",
        }
    }
}

#[derive::located]
impl Extra {
    /// The same values and this one, in place of an earlier one of the name.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<ExtraValue>) -> Self {
        self.values.insert(name.into(), value.into());
        self
    }

    /// A number that was added as `f64`.
    ///
    /// # Errors
    /// `Checkpoint` with the name if there is none, or if it is of another type.
    pub fn float(&self, name: &str) -> Result<f64> {
        match self.get(name)? {
            ExtraValue::Float(value) => Ok(*value),
            other => Err(other_kind(name, other, "a float")),
        }
    }

    /// A number that was added as `u64`.
    ///
    /// # Errors
    /// As for [`float`](Extra::float).
    pub fn integer(&self, name: &str) -> Result<u64> {
        match self.get(name)? {
            ExtraValue::Integer(value) => Ok(*value),
            other => Err(other_kind(name, other, "an integer")),
        }
    }

    /// A tensor; one that was loaded is on the device of the optimizer's parameters.
    ///
    /// # Errors
    /// As for [`float`](Extra::float).
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        match self.get(name)? {
            ExtraValue::Tensor(value) => Ok(value.clone()),
            other => Err(other_kind(name, other, "a tensor")),
        }
    }

    /// A value of any type.
    ///
    /// # Errors
    /// `Checkpoint` with the name if there is none.
    pub fn get(&self, name: &str) -> Result<&ExtraValue> {
        self.values.get(name).ok_or_else(|| wrong(&in_file(name), "no such value"))
    }

    /// The tensors, and the numbers as metadata: `{:?}` prints floats with a point, an exponent or letters, so that they read back as
    /// floats, and with as many digits as bring the same bits back.
    pub(super) fn parts(&self) -> Result<(Vec<Named>, String)> {
        let (mut tensors, mut text) = (Vec::new(), String::new());
        for (name, value) in &self.values {
            // A number is a word of the metadata; the name of a tensor may be any.
            let is_word = !name.is_empty() && !name.contains(|c: char| c == '=' || c.is_whitespace());
            let is_valid = is_word || matches!(value, ExtraValue::Tensor(_));
            expect_fit(
                is_valid,
                &in_file(name),
                "names of numbers have no blanks and no '=', and are not empty",
            )?;
            match value {
                ExtraValue::Float(value) => text.push_str(&format!(" {EXTRA}{name}={value:?}")),
                ExtraValue::Integer(value) => text.push_str(&format!(" {EXTRA}{name}={value}")),
                ExtraValue::Tensor(value) => {
                    tensors.push((in_file(name), value.clone(), Elements::Any));
                }
            }
        }
        Ok((tensors, text))
    }

    /// Takes over a number of the metadata; fails for what is none.
    pub(super) fn insert_number(&mut self, name: &str, value: &str) -> Option<()> {
        let integer = value.parse().map(ExtraValue::Integer).ok();
        let number = integer.or_else(|| value.parse().map(ExtraValue::Float).ok())?;
        self.values.insert(name.to_owned(), number);
        Some(())
    }

    /// Takes over the tensors of a file.
    pub(super) fn insert_tensors(&mut self, file: &Contents, device: &Device) -> Result<()> {
        for name in file.tensors.keys() {
            if let Some(short) = name.strip_prefix(EXTRA) {
                let tensor = file.tensor(name, Elements::Any, device)?;
                self.values.insert(short.to_owned(), ExtraValue::Tensor(tensor));
            }
        }
        Ok(())
    }
}

#[cold]
#[track_caller]
fn other_kind(name: &str, value: &ExtraValue, expected: &str) -> device::Error {
    wrong(&in_file(name), format_args!("{} in the file, {expected} expected", value.kind()))
}
