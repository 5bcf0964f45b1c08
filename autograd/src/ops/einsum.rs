//! `einsum`: sums of products over labelled axes, as products of matrices.

use tensor::{Error, Result};

use super::{Dims, Draw, Sample};
use crate::Var;

const OP: &str = "einsum";

/// An axis's label: a letter, or beyond those the place from the end of an axis that `...` stands for.
type Label = u32;

/// The first label of an axis that `...` stands for.
const UNNAMED: Label = 1 << 21;

/// A factor, and the label of each of its axes.
#[derive(Clone)]
struct Factor {
    value: Var,
    labels: Vec<Label>,
}

#[derive::located]
impl Var {
    /// The sum of products by Einstein's convention: axes with one letter are multiplied, and summed unless the result has the letter.
    ///
    /// `ij,jk->ik` is the matrix product. Without `->` the result has the letters that occur once, in alphabetical order. `...` stands for
    /// any number of axes, counted from the last one; axes of size 1 broadcast; a letter that one operand has twice means its diagonal.
    /// Of several operands the two with the fewest products come first.
    ///
    /// ```
    /// # use autograd::{Device, Result, Tensor, Var};
    /// # fn main() -> Result<()> {
    /// let x = Var::leaf(Tensor::from_slice(&[1.0, 2.0, 3.0, 4.0], &[2, 2], &Device::cpu())?);
    /// assert_eq!(Var::einsum("ij,kj->ik", &[&x, &x])?.to_vec::<f64>()?, [5.0, 11.0, 11.0, 25.0]);
    /// assert_eq!(Var::einsum("ii", &[&x])?.item::<f64>()?, 5.0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for an equation that does not fit the operands, or sizes of one letter that differ; those of
    /// [`Var::matmul`].
    pub fn einsum(equation: &str, operands: &[&Var]) -> Result<Var> {
        let Parsed { terms, output, sizes } = Parsed::new(equation, operands)?;
        let size = |label: &Label| sizes.iter().find(|(own, _)| own == label).map_or(1, |(_, size)| *size);
        let mut factors = Vec::with_capacity(operands.len());
        for (labels, operand) in terms.into_iter().zip(operands) {
            let shape: Dims = labels.iter().map(size).collect();
            factors.push(Factor { value: operand.expand(&shape)?, labels }.diagonal()?);
        }
        for at in 0..factors.len() {
            let others = factors.iter().enumerate().filter(|(other, _)| *other != at);
            let kept: Vec<Label> = others.flat_map(|(_, f)| f.labels.clone()).chain(output.clone()).collect();
            factors[at] = factors[at].clone().summed(&kept)?;
        }
        while factors.len() > 1 {
            let [first, second] = cheapest(&factors);
            let (second, first) = (factors.remove(second), factors.remove(first));
            let kept: Vec<Label> =
                factors.iter().flat_map(|f| f.labels.clone()).chain(output.clone()).collect();
            factors.push(first.times(&second, &kept)?);
        }
        let product = factors.pop().ok_or_else(|| Error::invalid(OP, "operands", "at least one", 0))?;
        product.in_order(&output)
    }

    /// The products of the elements of two vectors, `[m] x [n] -> [m, n]`.
    ///
    /// # Errors
    /// `InvalidArgument` unless both have rank 1; those of [`Var::mul`].
    pub fn outer(&self, rhs: &Var) -> Result<Var> {
        let ranks = format_args!("{:?} and {:?}", self.shape(), rhs.shape());
        Error::require(self.rank() == 1 && rhs.rank() == 1, "outer", "operands", "of rank 1", ranks)?;
        self.unsqueeze(1)?.mul(rhs)
    }

    /// The sum of the products of the elements of two vectors, `[n] x [n] -> []`.
    ///
    /// # Errors
    /// `InvalidArgument` unless both have rank 1; those of [`Var::matmul`].
    pub fn dot(&self, rhs: &Var) -> Result<Var> {
        let ranks = format_args!("{:?} and {:?}", self.shape(), rhs.shape());
        Error::require(self.rank() == 1 && rhs.rank() == 1, "dot", "operands", "of rank 1", ranks)?;
        self.matmul(rhs)
    }
}

impl Factor {
    /// The size of a label's axis; 1 without one.
    fn size(&self, label: Label) -> usize {
        self.labels.iter().position(|own| *own == label).map_or(1, |at| self.value.shape()[at])
    }

    /// The axes in the order of the labels, which are its own.
    fn in_order(&self, labels: &[Label]) -> Result<Var> {
        let place = |label: &Label| self.labels.iter().position(|own| own == label).unwrap_or(0) as isize;
        self.value.permute(&labels.iter().map(place).collect::<Vec<_>>())
    }

    /// Takes the diagonal of axes with one label.
    fn diagonal(mut self) -> Result<Factor> {
        let twice = |labels: &[Label]| {
            (1..labels.len()).find_map(|at| Some([labels[..at].iter().position(|l| *l == labels[at])?, at]))
        };
        while let Some([first, second]) = twice(&self.labels) {
            let size = self.value.shape()[first];
            let others = (0..self.labels.len()).filter(|&at| at != first && at != second);
            let order: Vec<usize> = others.chain([first, second]).collect();
            let axes: Vec<isize> = order.iter().map(|&at| at as isize).collect();
            let value = self.value.permute(&axes)?.flatten(-2, -1)?.step_by(-1, size + 1)?;
            let labels = order[..order.len() - 1].iter().map(|&at| self.labels[at]).collect();
            self = Factor { value, labels };
        }
        Ok(self)
    }

    /// Sums over the labels that are not kept.
    fn summed(self, kept: &[Label]) -> Result<Factor> {
        let axes: Vec<isize> =
            (0..).zip(&self.labels).filter(|(_, label)| !kept.contains(label)).map(|(at, _)| at).collect();
        if axes.is_empty() {
            return Ok(self);
        }
        let labels = self.labels.iter().copied().filter(|label| kept.contains(label)).collect();
        Ok(Factor { value: self.value.sum(&axes, false)?, labels })
    }

    /// The product of two factors, summed over the common labels that are not kept.
    fn times(&self, rhs: &Factor, kept: &[Label]) -> Result<Factor> {
        let (common, own): (Vec<Label>, Vec<Label>) =
            self.labels.iter().partition(|l| rhs.labels.contains(l));
        let (stacked, summed): (Vec<Label>, Vec<Label>) = common.into_iter().partition(|l| kept.contains(l));
        let others: Vec<Label> = rhs.labels.iter().copied().filter(|l| !self.labels.contains(l)).collect();
        let size =
            |label: Label| if self.labels.contains(&label) { self.size(label) } else { rhs.size(label) };
        let elements = |labels: &[Label]| labels.iter().map(|&label| size(label)).product();
        let [stack, rows, columns, inner] = [&stacked, &own, &others, &summed].map(|labels| elements(labels));
        let left = self.in_order(&[stacked.clone(), own.clone(), summed.clone()].concat())?;
        let right = rhs.in_order(&[stacked.clone(), summed.clone(), others.clone()].concat())?;
        let (left, right) = (left.reshape(&[stack, rows, inner])?, right.reshape(&[stack, inner, columns])?);
        let product = if summed.is_empty() { left.mul(&right)? } else { left.matmul(&right)? };
        let labels = [stacked, own, others].concat();
        let shape: Dims = labels.iter().map(|&label| size(label)).collect();
        Ok(Factor { value: product.reshape(&shape)?, labels })
    }
}

/// The two factors whose product takes the fewest multiplications.
fn cheapest(factors: &[Factor]) -> [usize; 2] {
    let cost = |&[a, b]: &[usize; 2]| {
        let (a, b) = (&factors[a], &factors[b]);
        let beside = b.labels.iter().filter(|l| !a.labels.contains(l)).map(|&l| b.size(l));
        a.value.shape().iter().copied().chain(beside).fold(1_usize, usize::saturating_mul)
    };
    let pairs = (1..factors.len()).flat_map(|b| (0..b).map(move |a| [a, b]));
    pairs.min_by_key(cost).unwrap_or([0, 1])
}

/// An equation: the labels of each operand's axes and of the result's, and the size of each label.
struct Parsed {
    terms: Vec<Vec<Label>>,
    output: Vec<Label>,
    sizes: Vec<(Label, usize)>,
}

impl Parsed {
    fn new(equation: &str, operands: &[&Var]) -> Result<Parsed> {
        let wrong = |expected| Error::invalid(OP, "equation", expected, format_args!("{equation:?}"));
        let text: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
        let (inputs, result) = text.split_once("->").map_or((&text[..], None), |(a, b)| (a, Some(b)));
        let written: Vec<&str> = inputs.split(',').collect();
        if written.len() != operands.len() {
            return Err(wrong("a term for each operand"));
        }
        let letters = |term: &str| -> Result<Vec<Label>> {
            let label = |c: char| c.is_ascii_alphabetic().then_some(Label::from(c));
            let label = |c| label(c).ok_or_else(|| wrong("letters, commas, `...` and one `->`"));
            term.chars().map(label).collect()
        };
        let unnamed = |count: usize| (0..count as Label).rev().map(|place| UNNAMED + place);
        // The labels of a term, where `...` stands for what `axes` returns for the number of letters.
        let labels = |term: &str, axes: &dyn Fn(usize) -> Result<usize>| -> Result<Vec<Label>> {
            let Some((before, behind)) = term.split_once("...") else { return letters(term) };
            let (before, behind) = (letters(before)?, letters(behind)?);
            let count = axes(before.len() + behind.len())?;
            Ok(before.into_iter().chain(unnamed(count)).chain(behind).collect())
        };
        let (mut terms, mut sizes) = (Vec::new(), Vec::<(Label, usize)>::new());
        for (term, operand) in written.into_iter().zip(operands) {
            let axes =
                |letters| operand.rank().checked_sub(letters).ok_or_else(|| wrong("a letter for each axis"));
            let labels = labels(term, &axes)?;
            if labels.len() != operand.rank() {
                return Err(wrong("a letter for each axis"));
            }
            for (&label, &size) in labels.iter().zip(operand.shape()) {
                match sizes.iter_mut().find(|(own, _)| *own == label) {
                    None => sizes.push((label, size)),
                    Some((_, known)) if *known == 1 => *known = size,
                    Some((_, known)) if size == 1 || size == *known => {}
                    Some((_, known)) => {
                        let name =
                            char::from_u32(label).filter(char::is_ascii).map_or("...".into(), String::from);
                        let value = format_args!("{known} and {size} for `{name}` of {equation:?}");
                        return Err(Error::invalid(OP, "operands", "of one size for each letter", value));
                    }
                }
            }
            terms.push(labels);
        }
        let count = sizes.iter().filter(|(label, _)| *label >= UNNAMED).count();
        let is_once = |label: &Label| terms.iter().flatten().filter(|other| *other == label).count() == 1;
        let output = match result {
            Some(term) => labels(term, &|_| Ok(count))?,
            None => {
                let mut once: Vec<Label> = sizes.iter().map(|(label, _)| *label).filter(is_once).collect();
                once.retain(|label| *label < UNNAMED);
                once.sort_unstable();
                unnamed(count).chain(once).collect()
            }
        };
        let is_known = |label: &Label| sizes.iter().any(|(own, _)| own == label);
        let is_first = |at: usize| !output[..at].contains(&output[at]);
        if !output.iter().all(is_known) || !(0..output.len()).all(is_first) {
            return Err(wrong("each letter of the result once, and in a term"));
        }
        Ok(Parsed { terms, output, sizes })
    }
}

pub(super) fn samples(d: &Draw) -> Result<Vec<Sample>> {
    d.samples(&[
        ("matrices", &[&[2, 3], &[3, 4]], |v| Var::einsum("ij,jk->ik", &[&v[0], &v[1]])),
        ("scores", &[&[2, 2, 3, 4], &[2, 2, 5, 4]], |v| Var::einsum("bhqd,bhkd->bhqk", &[&v[0], &v[1]])),
        ("three", &[&[2, 3], &[3, 4], &[4]], |v| Var::einsum("ij,jk,k->i", &[&v[0], &v[1], &v[2]])),
        ("diagonal", &[&[3, 3]], |v| Var::einsum("ii->i", &[&v[0]])?.square()),
        ("trace", &[&[2, 3, 2]], |v| Var::einsum("iji->j", &[&v[0]])?.square()),
        ("outer", &[&[2], &[3]], |v| Var::einsum("i,j", &[&v[0], &v[1]])),
        ("unnamed", &[&[4, 2, 3], &[3, 2]], |v| Var::einsum("...ij,jk->...ik", &[&v[0], &v[1]])),
        ("broadcast", &[&[1, 3], &[2, 3]], |v| Var::einsum("ij,ij->i", &[&v[0], &v[1]])),
        ("sum", &[&[2, 3]], |v| Var::einsum("ij->", &[&v[0]])?.square()),
    ])
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, leaf};
    use super::*;

    #[test]
    fn equals_products_and_sums() -> Result<()> {
        let (a, b) = (leaf(&[1.0, 2.0, 3.0, 4.0], &[2, 2])?, leaf(&[5.0, 6.0, 7.0, 8.0], &[2, 2])?);
        close(&Var::einsum("ij,jk", &[&a, &b])?, &[19.0, 22.0, 43.0, 50.0])?;
        close(&Var::einsum("ij,jk->ki", &[&a, &b])?, &[19.0, 43.0, 22.0, 50.0])?;
        close(&Var::einsum("ij,ij", &[&a, &b])?, &[70.0])?;
        close(&Var::einsum("ij->ji", &[&a])?, &[1.0, 3.0, 2.0, 4.0])?;
        close(&Var::einsum("ii", &[&a])?, &[5.0])?;
        close(&Var::einsum("i j , j -> i", &[&a, &b.select(0, 0)?])?, &[17.0, 39.0])?;
        close(&a.select(0, 0)?.dot(&b.select(0, 1)?)?, &[23.0])?;
        close(&a.select(0, 0)?.outer(&b.select(0, 1)?)?, &[7.0, 8.0, 14.0, 16.0])?;
        assert!(a.dot(&b).is_err() && a.outer(&b).is_err());
        Ok(())
    }

    #[test]
    fn equations_that_do_not_fit_are_refused() -> Result<()> {
        let (a, b) = (leaf(&[0.0; 6], &[2, 3])?, leaf(&[0.0; 4], &[2, 2])?);
        for (equation, operands) in [
            ("ij,jk->ik", &[&a, &b][..]),
            ("ii", &[&a]),
            ("ij", &[&a, &b]),
            ("ijk", &[&a]),
            ("i", &[&a]),
            ("ij->k", &[&a]),
            ("ij->ii", &[&a]),
            ("i1", &[&a]),
            ("ijk...", &[&a]),
            ("", &[]),
        ] {
            assert!(Var::einsum(equation, operands).is_err(), "{equation}");
        }
        let constant = leaf(&[1.0], &[])?;
        close(&Var::einsum("", &[&constant])?, &[1.0])
    }
}
