//! A rank that is a process of MPI.

use std::ffi::c_int;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::exchange::{Exchange, Staging};
use super::group::{Group, blame};
use super::library::Operation;
use super::mail::Kind;
use super::process::{Mpi, TAG_MESSAGE};
use crate::failure::{Failure, Side, late, mismatch, reason_of_drop};
use crate::split::{Asked, by_color};
use crate::{Backend, Call, Collective, CommOptions, Error, Memory, Result};

/// One rank's end of a group.
pub(super) struct Member {
    group: Group,
    staging: Mutex<Staging>,
}

/// The most bytes of a message that the library is given at once.
const MESSAGE: usize = 1 << 30;

impl Member {
    /// All ranks of MPI.
    pub(super) fn of_all(mpi: &'static Mpi, options: CommOptions) -> Result<Member> {
        let made = || mpi.split(mpi.names.world, Some(0), mpi.rank, options.timeout);
        let late = || {
            let missing = (0..mpi.size).filter(|&rank| rank != mpi.rank);
            late("mpi", options.timeout, missing.collect::<Vec<_>>())
        };
        let (data, control) = (made()?.ok_or_else(late)?, made()?.ok_or_else(late)?);
        let members = (0..mpi.size).collect();
        Ok(Member::new(Group::new(mpi, data, control, mpi.rank, members, options, Arc::default())))
    }

    fn new(group: Group) -> Member {
        Member { group, staging: Mutex::default() }
    }

    fn send(&self, call: &Call, memory: Memory, to: usize) -> Result<()> {
        let group = &self.group;
        // SAFETY: the input of a `Send` is dense, has `call.bytes()` bytes, and is not written while the command
        // runs.
        let bytes = unsafe { std::slice::from_raw_parts(memory.input, call.bytes()) };
        // A rank that only sends would read nothing else of what the others tell.
        group.check()?;
        group.tell_one(to, Kind::Message, call.bytes(), &elements(call))?;
        bytes.chunks(MESSAGE).try_for_each(|bytes| group.mpi.post(bytes, to, TAG_MESSAGE, group.data))
    }

    fn recv(&self, call: &Call, memory: Memory, from: usize) -> Result<()> {
        let group = &self.group;
        let sent = group.message(call.op(), from)?;
        let number = group.received[from].fetch_add(1, Ordering::Relaxed);
        if sent.text != elements(call) {
            let message = format!("send(to {}) of {}", group.rank, sent.text);
            let (sender, own) = (group.members[from], group.members[group.rank]);
            let mismatch = mismatch(number, Side { rank: sender, call: message }, Side { rank: own, call });
            return Err(group.fail_mismatch(from, number as usize, mismatch));
        }
        for start in (0..call.bytes()).step_by(MESSAGE) {
            let len = MESSAGE.min(call.bytes() - start);
            // SAFETY: the operation writes at most `len` bytes to `bytes`, which has `len`. `start` keeps it alive
            // until the operation has ended.
            let pending = unsafe {
                group.mpi.start(vec![0_u8; len], group.data, |bytes| Operation::Recv {
                    at: bytes.as_mut_ptr(),
                    bytes: len as c_int,
                    from: from as c_int,
                    tag: TAG_MESSAGE,
                })
            };
            let bytes = group.end(call.op(), pending.map_err(|error| group.fail(error))?)?;
            // SAFETY: `start + len` is at most `call.bytes()`, the length of the dense output. `bytes` has `len`
            // bytes and is an allocation of its own.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.output.add(start), len) };
        }
        Ok(())
    }
}

/// What is sent, as a receiver has to agree.
fn elements(call: &Call) -> String {
    format!("{} {:?}", call.dtype, &call.shape[..])
}

// SAFETY: `run` and `try_run` copy between the operands and staging memory of this rank before they return, so
// neither MPI nor another rank accesses the operands. Rank and size are fixed when the group is made.
unsafe impl Backend for Member {
    fn rank(&self) -> usize {
        self.group.rank
    }

    fn size(&self) -> usize {
        self.group.size()
    }

    fn failure(&self, collective: Collective) -> Option<Error> {
        match collective {
            Collective::Recv { .. } => None,
            _ => self.group.failure.get(),
        }
    }

    fn runs_on_host(&self) -> bool {
        true
    }

    fn run(&self, call: &Call, memory: Memory) -> Result<()> {
        match call.collective {
            Collective::Send { to } => return self.send(call, memory, to),
            Collective::Recv { from } => return self.recv(call, memory, from),
            _ => self.group.meet(call.op(), Kind::Call, 0, &call.to_string())?,
        };
        let staging = std::mem::take(&mut *self.staging.lock());
        let mut exchange = Exchange { group: &self.group, call, memory, staging };
        // SAFETY: `Backend::run` gets the memory of the operands of `call`, which the running command may use until
        // it returns.
        let moved = unsafe { exchange.run() };
        *self.staging.lock() = exchange.staging;
        moved
    }

    fn try_run(&self, call: &Call, memory: Memory) -> Result<bool> {
        match call.collective {
            Collective::Send { to } => self.send(call, memory, to).map(|()| true),
            _ => Ok(false),
        }
    }

    fn split(&self, color: Option<usize>, key: usize) -> Result<Option<Arc<dyn Backend>>> {
        const SPLIT: &str = "split";
        let group = &self.group;
        let _one = group.splitting.lock();
        // Each rank tells the others two numbers, the first of them 0 for no color.
        let mut told = [color.map_or(0, |color| color.saturating_add(1)), key].map(|own| (own, Vec::new()));
        let color = told[0].0.checked_sub(1);
        for (own, of_all) in &mut told {
            *of_all = group.meet(SPLIT, Kind::Split, *own, SPLIT)?;
        }
        let asked = told[0].1.iter().zip(&told[1].1);
        let colors = by_color(asked.map(|(color, &key)| Asked { color: color.checked_sub(1), key }));
        let ranks = color.and_then(|color| colors.get(&color));
        let rank = ranks.and_then(|ranks| ranks.iter().position(|&rank| rank == group.rank));
        // MPI's colors are small numbers.
        let index = color.and_then(|color| colors.keys().position(|&known| known == color));
        let mut comms = [0; 2];
        for comm in &mut comms {
            let timeout = group.options.timeout;
            let made = group.mpi.split(group.control, index, rank.unwrap_or_default(), timeout);
            let made = made.and_then(|made| made.ok_or_else(|| group.stuck(SPLIT)));
            *comm = made.map_err(|error| group.fail(error))?;
        }
        let (Some(ranks), Some(rank)) = (ranks, rank) else { return Ok(None) };
        let members = ranks.iter().map(|&rank| group.members[rank]).collect();
        let failure = Failure::of_part(&group.failure);
        let (data, control) = (comms[0], comms[1]);
        let group = Group::new(group.mpi, data, control, rank, members, group.options, failure);
        Ok(Some(Arc::new(Member::new(group))))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let group = &self.group;
        if std::thread::panicking() {
            group.mpi.part();
        }
        if group.failure.get().is_some() {
            // The others know.
            return;
        }
        let own = group.members[group.rank];
        let (rank, reason) = blame(&group.failure.of_leaving(own, reason_of_drop()), own);
        group.tell(Kind::Left, rank, &reason);
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mpi(rank {} of {})", self.group.rank, self.group.size())
    }
}
