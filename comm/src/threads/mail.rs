//! Messages from rank to rank.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use parking_lot::Mutex;

use super::member::Member;
use crate::{Call, Error, ErrorKind, Memory, Result};

/// What was sent and not received, by sender and receiver.
#[derive(Debug, Default)]
pub(super) struct Mail(Mutex<HashMap<(usize, usize), Lane>>);

#[derive(Debug, Default)]
struct Lane {
    messages: VecDeque<Message>,
    received: u64,
}

#[derive(Debug)]
struct Message {
    call: Call,
    bytes: Box<[u8]>,
    sent: Instant,
}

impl Mail {
    fn put(&self, from: usize, to: usize, message: Message) {
        self.0.lock().entry((from, to)).or_default().messages.push_back(message);
    }

    /// The next message, and its number.
    fn take(&self, from: usize, to: usize) -> Option<(u64, Message)> {
        let mut lanes = self.0.lock();
        let lane = lanes.get_mut(&(from, to))?;
        let message = lane.messages.pop_front()?;
        lane.received += 1;
        Some((lane.received - 1, message))
    }
}

impl Member {
    pub(super) fn send(&self, call: &Call, memory: Memory, to: usize) -> Result<()> {
        if let Some(failure) = self.group.message_failure(to) {
            return Err(failure);
        }
        let mut bytes = vec![0; call.bytes()].into_boxed_slice();
        // SAFETY: the input of a send is dense and has `call.bytes()` bytes, the length of `bytes`, which is an
        // allocation of its own.
        unsafe { std::ptr::copy_nonoverlapping(memory.input, bytes.as_mut_ptr(), bytes.len()) };
        self.group.mail.put(self.rank, to, Message { call: call.clone(), bytes, sent: Instant::now() });
        self.group.tell();
        Ok(())
    }

    /// Whether there is something to be received, or never will be.
    pub(super) fn has_mail(&self, from: usize) -> bool {
        let has_any = |lane: &Lane| !lane.messages.is_empty();
        self.group.message_failure(from).is_some()
            || self.group.mail.0.lock().get(&(from, self.rank)).is_some_and(has_any)
    }

    pub(super) fn recv(&self, call: &Call, memory: Memory, from: usize) -> Result<()> {
        let group = &self.group;
        let come = || {
            // Looked at first: what was sent before its sender left is there.
            let failure = group.message_failure(from);
            group.mail.take(from, self.rank).map(Ok).or(failure.map(Err))
        };
        let (number, message) = group
            .wait(come)
            .unwrap_or_else(|| Err(group.fail(group.late(call.op(), [group.members[from]].into()))))?;
        if (message.call.dtype, &message.call.shape) != (call.dtype, &call.shape) {
            let failure = group.fail(Error::new(ErrorKind::CollectiveMismatch {
                number,
                rank: group.members[from],
                call: message.call.to_string().into(),
                other: group.members[self.rank],
                other_call: call.to_string().into(),
            }));
            group.report(message.call.op(), from, failure.clone());
            return Err(failure);
        }
        // SAFETY: the output is dense, and has the type and shape of the message, which was just checked. The message
        // is an allocation of its own.
        unsafe { std::ptr::copy_nonoverlapping(message.bytes.as_ptr(), memory.output, message.bytes.len()) };
        self.stay(message.sent, call);
        Ok(())
    }
}
