//! What ranks tell each other beside their elements.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The rank has come to a collective.
    Call,
    /// It has come to a split.
    Split,
    /// It has sent a message, which follows.
    Message,
    /// It has left.
    Left,
    /// It has given up, and the group with it.
    Failed,
    /// It has received a message that it did not expect: both sides' calls.
    Mismatch,
    /// It is there, but its collective does not end.
    Stuck,
}

const KINDS: [Kind; 7] =
    [Kind::Call, Kind::Split, Kind::Message, Kind::Left, Kind::Failed, Kind::Mismatch, Kind::Stuck];

/// A few words of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) kind: Kind,
    /// Who says so.
    pub(super) from: usize,
    /// A number that goes with the kind.
    pub(super) number: usize,
    /// What all ranks must agree on, or why.
    pub(super) text: String,
    /// Of the whole text, of which the end may be cut off.
    hash: u64,
}

/// The most bytes of a record.
pub(super) const MOST: usize = 1024;
const HEAD: usize = 1 + 8 + 8 + 8;

impl Record {
    pub(super) fn new(kind: Kind, from: usize, number: usize, text: &str) -> Record {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let end = (0..=text.len().min(MOST - HEAD)).rev().find(|&end| text.is_char_boundary(end));
        let shown = &text[..end.unwrap_or_default()];
        Record { kind, from, number, text: shown.to_owned(), hash: hasher.finish() }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.kind as u8];
        bytes.extend((self.from as u64).to_le_bytes());
        bytes.extend((self.number as u64).to_le_bytes());
        bytes.extend(self.hash.to_le_bytes());
        bytes.extend(self.text.as_bytes());
        bytes
    }

    /// What was encoded, with zeros behind it; `None` for anything else.
    pub(super) fn decode(bytes: &[u8; MOST]) -> Option<Record> {
        let number = |at: usize| Some(u64::from_le_bytes(bytes[at..at + 8].try_into().ok()?));
        let text = bytes[HEAD..].split(|&byte| byte == 0).next()?;
        Some(Record {
            kind: *KINDS.get(usize::from(bytes[0]))?,
            from: usize::try_from(number(1)?).ok()?,
            number: usize::try_from(number(9)?).ok()?,
            text: std::str::from_utf8(text).ok()?.to_owned(),
            hash: number(17)?,
        })
    }

    /// Whether both say the same.
    pub(super) fn agrees(&self, other: &Record) -> bool {
        (&self.text, self.hash) == (&other.text, other.hash)
    }
}

/// What a rank has told, in its order.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    /// Calls, splits and messages.
    awaited: [VecDeque<Record>; 3],
    /// That it has left: the rank whose fault that is, and why.
    pub(super) left: Option<(usize, String)>,
    /// Whether it is there, at a collective that does not end.
    pub(super) is_stuck: bool,
}

impl Inbox {
    /// The records of a kind that is waited for: a call, a split or a message.
    pub(super) fn of(&mut self, kind: Kind) -> &mut VecDeque<Record> {
        &mut self.awaited[kind as usize]
    }

    /// Whether the rank has told anything after the collective that this one waits in.
    pub(super) fn is_alive(&self) -> bool {
        self.is_stuck || self.left.is_some() || !self.awaited[Kind::Call as usize].is_empty()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn records_come_as_they_go_and_long_ones_still_differ() {
        let record = Record::new(Kind::Failed, 3, 70_000, "why, \u{e4}");
        let mut bytes = record.encode();
        bytes.resize(MOST, 0);
        assert_eq!(Record::decode(&bytes.try_into().unwrap()), Some(record));
        assert_eq!(Record::decode(&[255; MOST]), None);
        let [long, other] = ["x", "y"].map(|end| format!("{}{end}", "\u{e4}".repeat(MOST)));
        let [long, other] = [long, other].map(|text| Record::new(Kind::Call, 0, 0, &text));
        assert!(long.encode().len() <= MOST);
        assert!(long.text == other.text && !long.agrees(&other));
    }
}
