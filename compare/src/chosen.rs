//! Which schedules a program gets.

use device::Order;

use crate::CompareOptions;
use crate::program::Program;

/// How a copy is run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum How {
    /// Each batch on one of so many lanes; one lane is the serial schedule.
    Lanes(usize),
    /// The next step's batches are prepared while this one trains.
    Stages,
    /// The step runs two branches at once.
    Branches,
    /// On batches that the host prepares before they are copied to the device.
    Hosted,
    /// The serial schedule, captured and replayed.
    Captured(Order),
    /// The next step's batches are prepared while what trains is replayed in the order of its data.
    CapturedStages,
}

impl How {
    pub(super) fn captured(self) -> Option<Order> {
        match self {
            How::Captured(order) => Some(order),
            How::CapturedStages => Some(Order::Data),
            _ => None,
        }
    }
}

/// The schedule whose batches the host prepares.
pub(super) const HOSTED: &str = "host-prepared";

const STAGES: (&str, How) = ("stages", How::Stages);

/// What runs at once, and how many batches a step has.
pub(super) struct Chosen {
    /// The concurrent schedules, the one that is diagnosed first.
    pub(super) concurrent: Vec<(&'static str, How)>,
    /// Further ones, captured ones last.
    pub(super) others: Vec<(&'static str, How)>,
    pub(super) batches_per_step: usize,
}

impl Chosen {
    /// As far as the program says how.
    pub(super) fn of<S, B>(program: &Program<'_, S, B>, options: &CompareOptions) -> Chosen {
        let streams = options.streams;
        let has_loss = program.loss.is_some();
        let has_parts = program.prepare.is_some() || program.branched.is_some();
        let natural = if has_loss && !has_parts { streams } else { 1 };
        let batches_per_step = options.batches_per_step.filter(|_| has_loss).unwrap_or(natural);
        let mut concurrent = Vec::new();
        if streams > 1 && program.prepare.is_some() {
            concurrent.push(STAGES);
        }
        if streams > 1 && program.branched.is_some() {
            concurrent.push(("branches", How::Branches));
        }
        if has_loss && (batches_per_step > 1 || concurrent.is_empty()) {
            concurrent.push(("lanes", How::Lanes(streams)));
        }
        let mut others = Vec::new();
        if program.prepare.is_some() && program.on_host {
            others.push((HOSTED, How::Hosted));
        }
        if options.captured {
            others.push(("captured, serial order", How::Captured(Order::Streams)));
            others.push(("captured, data order", How::Captured(Order::Data)));
        }
        if options.captured && concurrent.contains(&STAGES) {
            others.push(("captured, stages", How::CapturedStages));
        }
        Chosen { concurrent, others, batches_per_step }
    }

    /// Whether the streams of the concurrent schedule that is diagnosed need nothing of each other.
    pub(super) fn are_independent(&self) -> bool {
        self.concurrent.first().is_some_and(|(_, how)| *how != How::Stages)
    }

    pub(super) fn has_branches(&self) -> bool {
        self.concurrent.first().is_some_and(|(_, how)| *how == How::Branches)
    }

    /// What is run in other orders: the concurrent schedules, or else the serial one.
    pub(super) fn explored(&self) -> impl Iterator<Item = How> {
        let serial = self.concurrent.is_empty().then_some(How::Lanes(1));
        self.concurrent.iter().map(|(_, how)| *how).chain(serial)
    }
}
