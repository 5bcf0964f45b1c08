//! How large made-up images are.

use std::fmt;
use std::str::FromStr;

use device::{Device, DeviceKind, Error, Result};

/// Height and width of a workload's images, and with them how many levels its model has.
///
/// ```
/// use workloads::Scale;
/// # fn main() -> device::Result<()> {
/// let device = device::Device::cpu();
/// assert_eq!(Scale::of(&device), Scale::Small);
/// assert_eq!("article".parse::<Scale>()?, Scale::Article);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// 16 by 16: a step takes a millisecond on a CPU, for checks of what it does.
    Tiny,
    /// 64 by 64: a step takes tens of milliseconds on a CPU.
    Small,
    /// 256 by 256, as in the published measurements: a step takes most of a second on a CPU.
    Article,
}

impl Scale {
    /// Each scale with its name and size.
    const ALL: [(Scale, &'static str, usize); 3] =
        [(Scale::Tiny, "tiny", 16), (Scale::Small, "small", 64), (Scale::Article, "article", 256)];

    /// What a device gets unless told otherwise: small on a CPU.
    pub fn of(device: &Device) -> Scale {
        if device.kind() == DeviceKind::Cpu { Scale::Small } else { Scale::Article }
    }

    /// Height and width of an image.
    pub fn size(self) -> usize {
        Scale::ALL[self as usize].2
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Scale::ALL[*self as usize].1)
    }
}

impl FromStr for Scale {
    type Err = Error;

    /// # Errors
    /// `InvalidArgument` with the text, for another one.
    fn from_str(text: &str) -> Result<Scale> {
        let found = Scale::ALL.into_iter().find(|(_, name, _)| *name == text);
        found
            .map(|(scale, ..)| scale)
            .ok_or_else(|| Error::invalid("workload", "scale", "tiny, small or article", text))
    }
}
