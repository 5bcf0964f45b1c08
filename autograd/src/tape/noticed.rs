//! What the ops of a part of a program use of the tape, for [`recompute`](crate::recompute()).

use std::cell::RefCell;
use std::mem::ManuallyDrop;

use device::{OnDrop, Shared};
use rustc_hash::{FxHashMap, FxHashSet};
use tensor::Tensor;

use super::{Node, Save, Var};
use crate::mode::{Recording, with_recording};

/// What ops have used since the innermost [`noticing`] began, each at least once.
#[derive(Default)]
pub(crate) struct Noticed {
    pub(crate) on_tape: Vec<Var>,
    /// What is on no tape, but for what has no other owner: an activation is not kept for having been used.
    pub(crate) constants: Vec<Tensor>,
}

impl Noticed {
    fn add(&mut self, inputs: &[&Var], saved: &[Save<'_>]) {
        self.constants.retain(|tensor| !tensor.is_unique());
        for &input in inputs {
            match input.tracked() {
                Some(_) => self.on_tape.push(input.clone()),
                None => self.add_constant(&input.value),
            }
        }
        for save in saved {
            if let Save::Tensor(tensor) = save {
                self.add_constant(tensor);
            }
        }
    }

    fn add_constant(&mut self, tensor: &Tensor) {
        if !self.constants.iter().any(|known| known.same_storage(tensor)) {
            self.constants.push(tensor.clone());
        }
    }
}

thread_local! {
    /// Empty outside of [`noticing`]. It has no destructor, since ops also run while a thread or the process ends.
    static NOTICED: RefCell<ManuallyDrop<Noticed>> = RefCell::default();
}

/// Runs `f` without recording, and gives what its ops used and somebody still has.
pub(crate) fn noticing<R>(f: impl FnOnce() -> R) -> (R, Noticed) {
    let mut outer = NOTICED.with_borrow_mut(|noticed| std::mem::take(&mut **noticed));
    let _restore = OnDrop(|| NOTICED.with_borrow_mut(|noticed| std::mem::swap(&mut **noticed, &mut outer)));
    let result = with_recording(Recording::Noticed, f);
    let mut noticed = NOTICED.with_borrow_mut(|noticed| std::mem::take(&mut **noticed));
    noticed.constants.retain(|tensor| !tensor.is_unique());
    (result, noticed)
}

/// What ops of a second run have used since the innermost [`noticing_again`] began.
#[derive(Default)]
pub(crate) struct NoticedAgain {
    /// The nodes of the run's own ops, by address.
    made: FxHashSet<usize>,
    /// Other nodes that its ops used, by address, with what they are called in errors.
    pub(crate) used: FxHashMap<usize, String>,
}

impl NoticedAgain {
    pub(crate) fn add(&mut self, input: &Var) {
        let Some(node) = input.tracked().filter(|node| !self.made.contains(&node.address())) else {
            return;
        };
        self.used.entry(node.address()).or_insert_with(|| name_of(input, node));
    }
}

pub(crate) fn name_of(var: &Var, node: &Node) -> String {
    format!("the result of {} of shape {:?}", node.op, var.shape())
}

thread_local! {
    static NOTICED_AGAIN: RefCell<NoticedAgain> = RefCell::default();
}

/// Runs `f`, a second run, and gives what its ops used.
pub(crate) fn noticing_again<R>(f: impl FnOnce() -> R) -> (R, NoticedAgain) {
    let mut outer = NOTICED_AGAIN.take();
    let _restore = OnDrop(|| NOTICED_AGAIN.set(std::mem::take(&mut outer)));
    (f(), NOTICED_AGAIN.take())
}

/// Takes note of what an op of a second run uses.
#[cold]
pub(super) fn notice_again(inputs: &[&Var]) {
    NOTICED_AGAIN.with_borrow_mut(|noticed| inputs.iter().for_each(|input| noticed.add(input)));
}

/// Takes note of the node of an op of a second run.
#[cold]
pub(super) fn made_again(node: &Shared<Node>) {
    NOTICED_AGAIN.with_borrow_mut(|noticed| noticed.made.insert(node.address()));
}

/// Takes note of what an op uses.
#[cold]
pub(super) fn notice(inputs: &[&Var], saved: &[Save<'_>]) {
    NOTICED.with_borrow_mut(|noticed| noticed.add(inputs, saved));
}
