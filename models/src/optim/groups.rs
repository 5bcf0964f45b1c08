//! Groups of parameters, each with an optimizer of its own.

use autograd::{Gradients, Var};
use device::{Error, Result};

use super::{Optimizer, OptimizerState, check_parameters};
use crate::checkpoint::{expect_fit, wrong};

/// Several optimizers as one: of one kind with other options, or of different kinds.
///
/// The learning rate is that of the first group. Setting it, as schedules do, keeps the ratios between the groups' rates.
///
/// ```
/// use models::{AdamW, AdamWOptions, Groups, Module, Optimizer, mlp};
/// # fn main() -> device::Result<()> {
/// let model = mlp(&[4, 8, 2], 7, &device::Device::cpu())?;
/// let weights = model.parameters_where(&|name, _| name.ends_with("weight"));
/// let biases = model.parameters_where(&|name, _| name.ends_with("bias"));
/// let without_decay = AdamWOptions { lr: 2e-3, weight_decay: 0.0, ..AdamWOptions::default() };
/// let mut groups = Groups::new(vec![
///     Box::new(AdamW::new(weights, 1e-3)?),
///     Box::new(AdamW::new(biases, without_decay)?),
/// ])?;
/// groups.set_learning_rate(0.5e-3)?;
/// assert_eq!(groups.groups()[1].learning_rate(), 1e-3);
/// # Ok(())
/// # }
/// ```
pub struct Groups {
    groups: Vec<Box<dyn Optimizer>>,
    parameters: Vec<Var>,
    /// The rate of each group for a rate of 1.
    ratios: Vec<f64>,
}

impl std::fmt::Debug for Groups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Groups").field("ratios", &self.ratios).finish_non_exhaustive()
    }
}

#[derive::located]
impl Groups {
    /// One optimizer of all groups' parameters.
    ///
    /// # Errors
    /// `InvalidArgument` for no groups, a parameter in two of them, or a first group whose rate is 0.
    pub fn new(groups: Vec<Box<dyn Optimizer>>) -> Result<Groups> {
        const OP: &str = "groups";
        let parameters: Vec<Var> =
            groups.iter().flat_map(|group| group.parameters().iter().cloned()).collect();
        check_parameters(OP, &parameters)?;
        let first = groups.first().map_or(0.0, |group| group.learning_rate());
        Error::require(first > 0.0, OP, "learning rate", "of the first group above 0", first)?;
        let mut all = Groups { groups, parameters, ratios: Vec::new() };
        all.take_ratios();
        Ok(all)
    }

    /// Takes the ratios from the rates as they are, unless the first one is 0.
    fn take_ratios(&mut self) {
        let first = self.learning_rate();
        if first > 0.0 {
            self.ratios = self.groups.iter().map(|group| group.learning_rate() / first).collect();
        }
    }

    /// The groups, in their order.
    pub fn groups(&self) -> &[Box<dyn Optimizer>] {
        &self.groups
    }
}

#[derive::located]
impl Optimizer for Groups {
    fn step(&mut self, gradients: &Gradients) -> Result<()> {
        let has_gradient = |group: &dyn Optimizer| {
            group.parameters().iter().any(|p| p.requires_grad() && gradients.get(p).is_some())
        };
        // A step without any gradient is the first group's error.
        let none = !self.groups.iter().any(|group| has_gradient(&**group));
        let with_gradients = self.groups.iter_mut().filter(|group| none || has_gradient(&***group));
        with_gradients.into_iter().try_for_each(|group| group.step(gradients))
    }

    fn learning_rate(&self) -> f64 {
        self.groups.first().map_or(0.0, |group| group.learning_rate())
    }

    fn set_learning_rate(&mut self, lr: f64) -> Result<()> {
        self.groups
            .iter_mut()
            .zip(&self.ratios)
            .try_for_each(|(group, ratio)| group.set_learning_rate(lr * ratio))
    }

    fn parameters(&self) -> &[Var] {
        &self.parameters
    }

    fn state(&self) -> Result<OptimizerState> {
        let mut all = OptimizerState { kind: "groups".into(), ..OptimizerState::default() };
        for (number, group) in self.groups.iter().enumerate() {
            let OptimizerState { kind, options, tensors } = group.state()?;
            let named = |name: String| format!("{number}:{kind}:{name}");
            all.options.extend(options.into_iter().map(|(name, value)| (named(name), value)));
            all.tensors.extend(tensors.into_iter().map(|(name, tensor)| (named(name), tensor)));
        }
        Ok(all)
    }

    fn load_state(&mut self, state: &OptimizerState) -> Result<()> {
        expect_fit(
            state.kind == "groups",
            "optimizer",
            format_args!("{:?} in the state, groups expected", state.kind),
        )?;
        let before = self.state()?;
        let states =
            (0..self.groups.len()).map(|number| of_group(state, number)).collect::<Result<Vec<_>>>()?;
        let count = states.iter().map(|state| state.options.len() + state.tensors.len()).sum::<usize>();
        let found = state.options.len() + state.tensors.len();
        expect_fit(count == found, "optimizer", format_args!("state of more than {} groups", states.len()))?;
        for (number, own) in states.iter().enumerate() {
            let loaded = self.groups[number].load_state(own);
            if loaded.is_err() {
                // What was loaded is taken back, so that nothing has changed.
                for (group, number) in self.groups.iter_mut().zip(0..number) {
                    group.load_state(&of_group(&before, number)?)?;
                }
                return loaded;
            }
        }
        self.take_ratios();
        Ok(())
    }
}

/// The part of a state that belongs to one group.
fn of_group(state: &OptimizerState, number: usize) -> Result<OptimizerState> {
    let prefix = format!("{number}:");
    let mut own = OptimizerState::default();
    let mut split = |name: &str| -> Option<String> {
        let (kind, name) = name.strip_prefix(&prefix)?.split_once(':')?;
        own.kind = kind.to_owned();
        Some(name.to_owned())
    };
    let options: Vec<_> = state.options.iter().filter_map(|(name, v)| Some((split(name)?, *v))).collect();
    let tensors: Vec<_> =
        state.tensors.iter().filter_map(|(name, t)| Some((split(name)?, t.clone()))).collect();
    if options.is_empty() {
        return Err(wrong("optimizer", format!("no state of group {number}")));
    }
    Ok(OptimizerState { kind: own.kind, options, tensors })
}
