//! Messages from rank to rank.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use parking_lot::Mutex;

use crate::Call;

/// Messages that were sent and not received, by sender and receiver.
#[derive(Debug, Default)]
pub(super) struct Mail(Mutex<HashMap<(usize, usize), Unread>>);

#[derive(Debug, Default)]
struct Unread {
    messages: VecDeque<Message>,
    received: u64,
}

#[derive(Debug)]
pub(super) struct Message {
    pub(super) call: Call,
    pub(super) bytes: Box<[u8]>,
    pub(super) sent: Instant,
}

impl Mail {
    pub(super) fn put(&self, from: usize, to: usize, message: Message) {
        self.0.lock().entry((from, to)).or_default().messages.push_back(message);
    }

    /// The next message, and its number.
    pub(super) fn take(&self, from: usize, to: usize) -> Option<(u64, Message)> {
        let mut all = self.0.lock();
        let unread = all.get_mut(&(from, to))?;
        let message = unread.messages.pop_front()?;
        unread.received += 1;
        Some((unread.received - 1, message))
    }

    pub(super) fn has_any(&self, from: usize, to: usize) -> bool {
        self.0.lock().get(&(from, to)).is_some_and(|unread| !unread.messages.is_empty())
    }
}
