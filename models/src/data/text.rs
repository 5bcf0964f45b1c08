//! Text as numbered characters.

use std::path::Path;
use std::sync::Arc;

use device::{Device, Error, ErrorKind, Result};
use tensor::{Generator, Tensor, Tensors};

use super::{InMemory, malformed};
use crate::file;
use crate::random::{self, SplitMix};

/// A text whose characters are numbered; cheap to clone, as are its parts.
///
/// ```
/// use models::Text;
/// # fn main() -> device::Result<()> {
/// let text = Text::new("to be or not to be")?;
/// assert_eq!(text.vocabulary(), [' ', 'b', 'e', 'n', 'o', 'r', 't']);
/// assert_eq!(text.decode(&text.encode("bee")?)?, "bee");
/// let (train, validation) = text.split(0.25)?;
/// assert_eq!((train.len(), validation.len()), (13, 5));
/// let batch = train.windows(5, 2, 7)?.batch(0, &device::Device::cpu())?;
/// assert_eq!((batch.tokens.shape(), batch.targets.shape()), (&[2, 5][..], &[2, 5][..]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Text {
    tokens: Arc<[i64]>,
    vocabulary: Arc<[char]>,
}

/// Random windows of a text, a batch for each step; what a step gets depends on the seed and its number alone.
#[derive(Clone, Debug)]
pub struct Windows {
    text: Text,
    length: usize,
    batch_size: usize,
    seed: u64,
}

/// Windows of a text, and each of their characters' successors.
#[derive(Clone, Debug)]
pub struct TextBatch {
    /// The characters' numbers, `[b, length]`, I64.
    pub tokens: Tensor,
    /// The numbers of the characters one place on, `[b, length]`, I64.
    pub targets: Tensor,
    /// What random ops on this batch are keyed by.
    pub key: u64,
}

impl TextBatch {
    /// Runs `work` with random keys that follow from this batch alone, as [`tensor::with_generator`] does.
    pub fn seeded<R>(&self, work: impl FnOnce() -> R) -> R {
        tensor::with_generator(Generator::new(self.key), work)
    }
}

/// As for [`Batch`](crate::Batch).
impl Tensors for TextBatch {
    fn rebuild(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(TextBatch { tokens: f(&self.tokens)?, targets: f(&self.targets)?, key: self.key })
    }

    fn seeds(&mut self, f: &mut dyn FnMut(&mut u64)) {
        f(&mut self.key);
    }
}

#[derive::located]
impl Text {
    /// A text whose vocabulary is the characters that are in it, in their order.
    ///
    /// # Errors
    /// `InvalidArgument` for an empty text.
    pub fn new(text: &str) -> Result<Self> {
        let mut vocabulary: Vec<char> = text.chars().collect();
        vocabulary.sort_unstable();
        vocabulary.dedup();
        Error::require(!vocabulary.is_empty(), "text", "text", "not empty", "no characters")?;
        let none = Text { tokens: [].into(), vocabulary: vocabulary.into() };
        Ok(Text { tokens: none.encode(text)?.into(), ..none })
    }

    /// The text of a file, in UTF-8.
    ///
    /// # Errors
    /// `Io` if the file cannot be read; `Format` if it is not UTF-8; as [`Text::new`].
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let text = String::from_utf8(file::read(path)?).map_err(|error| malformed(path.display(), error))?;
        Self::new(&text)
    }

    /// The number of characters.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The characters that there are; a character's number is its place here.
    pub fn vocabulary(&self) -> &[char] {
        &self.vocabulary
    }

    /// The numbers of the text's characters.
    pub fn tokens(&self) -> &[i64] {
        &self.tokens
    }

    /// The numbers of a text's characters.
    ///
    /// # Errors
    /// `InvalidArgument` for a character that is not in the vocabulary.
    pub fn encode(&self, text: &str) -> Result<Vec<i64>> {
        let number = |c: char| match self.vocabulary.binary_search(&c) {
            Ok(place) => Ok(place as i64),
            Err(_) => {
                let expected = "made of the vocabulary's characters";
                Err(Error::invalid("text", "text", expected, format_args!("{c:?}")))
            }
        };
        text.chars().map(number).collect()
    }

    /// The text with these numbers.
    ///
    /// # Errors
    /// `IndexOutOfRange` for a number that is no character's.
    pub fn decode(&self, tokens: &[i64]) -> Result<String> {
        let size = self.vocabulary.len();
        let character = |&token: &i64| {
            let found = usize::try_from(token).ok().and_then(|place| self.vocabulary.get(place));
            found.copied().ok_or(Error::new(ErrorKind::IndexOutOfRange {
                op: "text",
                operand: "token",
                index: token,
                size,
            }))
        };
        tokens.iter().map(character).collect()
    }

    /// The text without its end, and the end: `round(fraction * len)` characters, and at least one on each side. Both have
    /// the vocabulary of the whole.
    ///
    /// # Errors
    /// `InvalidArgument` unless `0 < fraction < 1`, or for less than two characters.
    pub fn split(&self, fraction: f64) -> Result<(Self, Self)> {
        let is_valid = fraction > 0.0 && fraction < 1.0;
        Error::require(is_valid, "text", "fraction", "between 0 and 1, exclusive", fraction)?;
        Error::require(self.len() >= 2, "text", "text", "at least two characters to split", self.len())?;
        let end = ((fraction * self.len() as f64).round() as usize).clamp(1, self.len() - 1);
        let (train, validation) = self.tokens.split_at(self.len() - end);
        let part = |tokens: &[i64]| Text { tokens: tokens.into(), vocabulary: self.vocabulary.clone() };
        Ok((part(train), part(validation)))
    }

    /// Random windows of `length` characters, `batch_size` of them for each step.
    ///
    /// # Errors
    /// `InvalidArgument` if either is 0, or if the text is not longer than a window.
    pub fn windows(&self, length: usize, batch_size: usize, seed: u64) -> Result<Windows> {
        self.expect_windows(length)?;
        Error::require(batch_size > 0, "text", "batch_size", "at least 1", "0")?;
        Ok(Windows { text: self.clone(), length, batch_size, seed })
    }

    /// Every window of `length` characters that begins at a multiple of `stride`, as a row; its labels are the characters one
    /// place on. Numbers are exact in the rows' F32.
    ///
    /// # Errors
    /// As [`Text::windows`], and for a stride of 0.
    pub fn rows(&self, length: usize, stride: usize) -> Result<InMemory> {
        self.expect_windows(length)?;
        Error::require(stride > 0, "text", "stride", "at least 1", "0")?;
        let (mut inputs, mut labels) = (Vec::new(), Vec::new());
        for start in (0..self.len() - length).step_by(stride) {
            inputs.extend(self.tokens[start..start + length].iter().map(|&token| token as f32));
            labels.extend_from_slice(&self.tokens[start + 1..][..length]);
        }
        InMemory::with_labels(inputs, length, labels, length, self.vocabulary.len())
    }

    fn expect_windows(&self, length: usize) -> Result<()> {
        let value = format_args!("{length} of {} characters", self.len());
        let is_valid = length > 0 && length < self.len();
        Error::require(is_valid, "text", "length", "at least 1 and less than the text's", value)
    }
}

#[derive::located]
impl Windows {
    /// The batch of step `number`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn batch(&self, number: u64, device: &Device) -> Result<TextBatch> {
        let key = random::mix(&[self.seed, number]);
        let mut random = SplitMix(random::mix(&[key, WINDOWS]));
        let (mut tokens, mut targets) = (Vec::new(), Vec::new());
        for _ in 0..self.batch_size {
            let start = random.below(self.text.len() - self.length);
            tokens.extend_from_slice(&self.text.tokens[start..][..self.length]);
            targets.extend_from_slice(&self.text.tokens[start + 1..][..self.length]);
        }
        let shape = [self.batch_size, self.length];
        let of = |values: &[i64]| Tensor::from_slice(values, &shape, device);
        Ok(TextBatch { tokens: of(&tokens)?, targets: of(&targets)?, key })
    }
}

/// Keeps the windows' random numbers apart from those that batches key.
const WINDOWS: u64 = 0x77_696e_646f_7773;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_keyed_and_followed_by_their_successors() {
        let text = Text::new(&"abcdefghij".repeat(10)).unwrap();
        let windows = text.windows(7, 50, 3).unwrap();
        let dev = Device::cpu();
        let of = |windows: &Windows, number| {
            let batch = windows.batch(number, &dev).unwrap();
            (batch.tokens.to_vec::<i64>().unwrap(), batch.targets.to_vec::<i64>().unwrap(), batch.key)
        };
        let (tokens, targets, key) = of(&windows, 5);
        assert!(tokens.iter().zip(&targets).all(|(a, b)| (a + 1) % 10 == *b));
        assert_eq!(of(&windows, 5), (tokens.clone(), targets, key));
        assert_ne!(of(&windows, 6).0, tokens);
        assert_ne!(of(&text.windows(7, 50, 4).unwrap(), 5).0, tokens);
        let mut starts: Vec<i64> = tokens.chunks(7).map(|row| row[0]).collect();
        starts.sort_unstable();
        starts.dedup();
        assert_eq!(starts.len(), 10, "windows begin anywhere");
        // The last window is reached, too.
        let short = Text::new("abc").unwrap().windows(2, 1, 0).unwrap();
        assert!((0..20).all(|number| of(&short, number).0 == [0, 1]));
    }

    #[test]
    fn rows_overlap_as_the_stride_says() {
        let text = Text::new("abcdefg").unwrap();
        let rows = text.rows(3, 2).unwrap();
        assert_eq!((rows.len(), rows.row(1).unwrap()), (2, &[2.0, 3.0, 4.0][..]));
        assert_eq!(rows.labels(), [1, 2, 3, 3, 4, 5]);
        assert_eq!(text.rows(6, 1).unwrap().len(), 1);
    }

    #[test]
    fn a_split_keeps_the_order_and_the_vocabulary() {
        let text = Text::new("hello, wörld").unwrap();
        let (train, validation) = text.split(0.3).unwrap();
        let back = |text: &Text| text.decode(text.tokens()).unwrap();
        assert_eq!((back(&train).as_str(), back(&validation).as_str()), ("hello, w", "örld"));
        assert_eq!(validation.vocabulary(), text.vocabulary());
        assert!(text.encode("x").is_err() && text.decode(&[99]).is_err() && text.decode(&[-1]).is_err());
    }

    #[test]
    fn bad_arguments_and_files_are_errors() {
        let text = Text::new("abc").unwrap();
        assert!(Text::new("").is_err() && text.split(1.0).is_err() && text.split(f64::NAN).is_err());
        assert!(Text::new("a").unwrap().split(0.5).is_err());
        for (length, batch) in [(0, 1), (3, 1), (2, 0)] {
            assert!(text.windows(length, batch, 0).is_err());
        }
        assert!(text.rows(2, 0).is_err() && text.rows(3, 1).is_err());
        assert!(matches!(
            Text::read("/nowhere/at/all").as_ref().map_err(Error::kind),
            Err(ErrorKind::Io { .. })
        ));
        let path = std::env::temp_dir().join(format!("streamgrad-text-{}", std::process::id()));
        std::fs::write(&path, [b'a', 0xff]).unwrap();
        assert!(matches!(Text::read(&path).as_ref().map_err(Error::kind), Err(ErrorKind::Format { .. })));
        std::fs::write(&path, "abba").unwrap();
        assert_eq!(Text::read(&path).unwrap().tokens(), [0, 1, 1, 0]);
        std::fs::remove_file(&path).unwrap();
    }
}
