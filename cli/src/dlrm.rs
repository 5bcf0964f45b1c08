//! A recommendation model of dense and categorical features.

use autograd::Var;
use device::{DType, Device, Error, Result};
use tensor::{RandomKey, Tensor};

use models::data::RaggedBatch;
use models::{EmbeddingBag, EmbeddingOptions, Forward, Linear, Module, Relu, Sequential};

/// The sizes of a [`Dlrm`].
#[derive(Clone, Debug)]
pub struct DlrmOptions {
    /// Dense features.
    pub dense: usize,
    /// For each categorical feature, the number of its values.
    pub categories: Vec<usize>,
    /// The width of an embedding, and of what the dense features become.
    pub width: usize,
    /// Hidden layers of the dense features.
    pub bottom: Vec<usize>,
    /// Hidden layers behind the products.
    pub top: Vec<usize>,
}

/// A deep-learning recommendation model (Naumov et al. 2019): the dense features go through a perceptron, each categorical
/// feature is the mean of its values' embeddings, and the products of every two of these vectors go, beside the dense one,
/// through another perceptron to one score. The logistic function of the score is the chance of a click.
#[derive(Module)]
pub struct Dlrm {
    bottom: Sequential,
    tables: Vec<EmbeddingBag>,
    top: Sequential,
    #[module(skip)]
    dense: usize,
    /// The places of the lower triangle, without the diagonal, in a matrix of products: `[v (v - 1) / 2]`.
    #[module(skip)]
    pairs: Tensor,
}

impl Dlrm {
    /// A model with its first values keyed by `seed`. Embeddings start normal with variance `1 / width`, so that products
    /// have about the size of 1.
    ///
    /// # Errors
    /// `InvalidArgument` for a size of 0; `OutOfMemory`.
    pub fn new(options: &DlrmOptions, seed: u64, device: &Device) -> Result<Dlrm> {
        let DlrmOptions { dense, categories, width, bottom, top } = options;
        let sizes = [*dense, *width].into_iter().chain(categories.iter().chain(bottom).chain(top).copied());
        let value = format_args!("{options:?}");
        let is_valid = !sizes.into_iter().any(|size| size == 0);
        Error::require(is_valid, "dlrm", "options", "sizes of at least 1", value)?;
        let mut op = 0;
        let mut key = || {
            op += 1;
            RandomKey { seed, op: op - 1 }
        };
        let mut perceptron = |sizes: &[usize], last_relu: bool| -> Result<Sequential> {
            let mut layers = Sequential::new();
            for (layer, pair) in sizes.windows(2).enumerate() {
                layers = layers.push(Linear::keyed(pair[0], pair[1], key(), device)?);
                if last_relu || layer + 2 < sizes.len() {
                    layers = layers.push(Relu);
                }
            }
            Ok(layers)
        };
        let vectors = categories.len() + 1;
        let products = vectors * (vectors - 1) / 2;
        let bottom = perceptron(&[&[*dense], &bottom[..], &[*width]].concat(), true)?;
        let top = perceptron(&[&[width + products], &top[..], &[1]].concat(), false)?;
        let deviation = (*width as f64).sqrt().recip();
        let tables = categories.iter().map(|&rows| {
            let options = EmbeddingOptions { deviation, key: Some(key()), ..EmbeddingOptions::default() };
            EmbeddingBag::with_options(rows, *width, options, device)
        });
        let tables = tables.collect::<Result<_>>()?;
        let pairs = (0..vectors).flat_map(|row| (0..row).map(move |column| (row * vectors + column) as i64));
        let pairs = Tensor::from_slice(&pairs.collect::<Vec<_>>(), &[products], device)?;
        Ok(Dlrm { bottom, tables, top, dense: *dense, pairs })
    }

    /// The score of each row, from its dense features and the bags of its categorical ones.
    ///
    /// Shapes: `dense [b, d]`, and `b` bags for each feature -> `[b]`.
    ///
    /// # Errors
    /// `InvalidArgument` for another number of categorical features, `ShapeMismatch`, `IndexOutOfRange`.
    pub fn scores(&self, dense: &Var, bags: &[RaggedBatch]) -> Result<Var> {
        let value = format_args!("{} for {} tables", bags.len(), self.tables.len());
        let is_valid = bags.len() == self.tables.len();
        Error::require(is_valid, "dlrm", "bags", "one for each categorical feature", value)?;
        let embed = |(table, bags): (&EmbeddingBag, &RaggedBatch)| table.bags(&bags.indices, &bags.offsets);
        self.interact(dense, self.tables.iter().zip(bags).map(embed))
    }

    fn interact(&self, dense: &Var, embedded: impl Iterator<Item = Result<Var>>) -> Result<Var> {
        let dense = self.bottom.forward(dense)?;
        let mut vectors = vec![dense.clone()];
        for vector in embedded {
            vectors.push(vector?);
        }
        let (rows, count) = (dense.shape()[0], vectors.len());
        let vectors = Var::stack(&vectors.iter().collect::<Vec<_>>(), 1)?;
        let products = vectors.matmul(&vectors.transpose(1, 2)?)?.reshape(&[rows, count * count])?;
        let products = products.index_select(1, &self.pairs)?;
        self.top.forward(&Var::cat(&[&dense, &products], 1)?)?.reshape(&[rows])
    }
}

impl Forward for Dlrm {
    /// The score of rows with exactly one value for each categorical feature, behind the dense features:
    /// `[b, dense + categories] -> [b]`.
    fn forward(&self, input: &Var) -> Result<Var> {
        let dense = input.narrow(1, 0, self.dense)?;
        let values = input.value().narrow(1, self.dense, self.tables.len())?.to_dtype(DType::I64)?;
        let embed = |(feature, table): (usize, &EmbeddingBag)| {
            table.forward(&Var::constant(values.narrow(1, feature, 1)?))
        };
        self.interact(&dense, self.tables.iter().enumerate().map(embed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::ErrorKind;

    fn options() -> DlrmOptions {
        DlrmOptions { dense: 3, categories: vec![5, 7], width: 4, bottom: vec![6], top: vec![8] }
    }

    fn numbers(shape: &[usize], op: u64, device: &Device) -> Tensor {
        Tensor::randn(shape, DType::F32, RandomKey { seed: 3, op }, device).unwrap()
    }

    fn bags(indices: &[i64], offsets: &[i64], device: &Device) -> RaggedBatch {
        let of = |values: &[i64]| Tensor::from_slice(values, &[values.len()], device).unwrap();
        RaggedBatch { indices: of(indices), offsets: of(offsets) }
    }

    #[test]
    fn scores_are_those_of_plain_loops() {
        let device = Device::cpu();
        let model = Dlrm::new(&options(), 1, &device).unwrap();
        let dense = numbers(&[2, 3], 0, &device);
        let bags = [bags(&[4, 0, 1], &[0, 2], &device), bags(&[6, 6], &[0, 0], &device)];
        let got =
            model.scores(&Var::constant(dense.clone()), &bags).unwrap().value().to_vec::<f32>().unwrap();
        let table = |feature: usize, row: usize| -> Vec<f32> {
            model.tables[feature].parameters()[0].value().narrow(0, row, 1).unwrap().to_vec().unwrap()
        };
        let mean = |a: Vec<f32>, b: Vec<f32>| a.iter().zip(b).map(|(a, b)| (a + b) / 2.0).collect::<Vec<_>>();
        // The first bag of the second feature is empty.
        let embedded = [[mean(table(0, 4), table(0, 0)), vec![0.0; 4]], [table(0, 1), table(1, 6)]];
        for (row, [a, b]) in embedded.iter().enumerate() {
            let input = Var::constant(dense.narrow(0, row, 1).unwrap());
            let z = model.bottom.forward(&input).unwrap().value().to_vec::<f32>().unwrap();
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
            let joined = [&z[..], &[dot(a, &z), dot(b, &z), dot(b, a)]].concat();
            let joined = Tensor::from_slice(&joined, &[1, 7], &device).unwrap();
            let want = model.top.forward(&Var::constant(joined)).unwrap().value().item::<f32>().unwrap();
            approx::assert_abs_diff_eq!(got[row], want, epsilon = 1e-5);
        }
    }

    #[test]
    fn a_row_may_name_one_value_each() {
        let device = Device::cpu();
        let model = Dlrm::new(&options(), 1, &device).unwrap();
        let dense = numbers(&[2, 3], 0, &device);
        let values = Tensor::from_slice(&[4.0_f32, 6.0, 0.0, 3.0], &[2, 2], &device).unwrap();
        let rows = Var::constant(Tensor::cat(&[&dense, &values], 1).unwrap());
        let bags = [bags(&[4, 0], &[0, 1], &device), bags(&[6, 3], &[0, 1], &device)];
        let of = |scores: Result<Var>| scores.unwrap().value().to_vec::<f32>().unwrap();
        assert_eq!(of(model.forward(&rows)), of(model.scores(&Var::constant(dense), &bags)));
    }

    #[test]
    fn parameters_are_named_and_all_have_gradients() {
        let device = Device::cpu();
        let model = Dlrm::new(&options(), 1, &device).unwrap();
        let named = model.named_parameters();
        assert!(named.iter().any(|(name, table)| name == "tables.1.weight" && table.shape() == [7, 4]));
        let bags = [bags(&[4, 0, 1], &[0, 2], &device), bags(&[6, 6], &[0, 0], &device)];
        let scores = model.scores(&Var::constant(numbers(&[2, 3], 0, &device)), &bags).unwrap();
        let gradients = scores.square().unwrap().sum(&[], false).unwrap().backward().unwrap();
        for (name, parameter) in &named {
            let gradient = gradients.get(parameter).unwrap_or_else(|| panic!("{name} has no gradient"));
            assert!(gradient.to_vec::<f32>().unwrap().iter().all(|g| g.is_finite()), "{name}");
        }
        assert_eq!(named.len(), 2 * 2 + 2 + 2 * 2);
    }

    #[test]
    fn bad_sizes_and_bags_are_errors() {
        let device = Device::cpu();
        let wrong = DlrmOptions { width: 0, ..options() };
        assert!(matches!(
            Dlrm::new(&wrong, 1, &device).as_ref().map_err(Error::kind),
            Err(ErrorKind::InvalidArgument { argument: "options", .. })
        ));
        let model = Dlrm::new(&options(), 1, &device).unwrap();
        let dense = Var::constant(numbers(&[1, 3], 0, &device));
        let one = bags(&[0], &[0], &device);
        let error = model.scores(&dense, std::slice::from_ref(&one));
        assert!(matches!(
            error.as_ref().map_err(Error::kind),
            Err(ErrorKind::InvalidArgument { argument: "bags", .. })
        ));
        let outside = bags(&[7], &[0], &device);
        assert!(matches!(
            model.scores(&dense, &[one, outside]).as_ref().map_err(Error::kind),
            Err(ErrorKind::IndexOutOfRange { index: 7, .. })
        ));
    }
}
