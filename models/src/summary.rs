//! What a forward pass of a model costs, layer by layer.

use std::collections::HashMap;
use std::fmt;
use std::mem;

use autograd::{TapeEntry, Var, with_grad};
use device::{OnDrop, Result};
use tensor::{Generator, Tensor, with_generator};

use crate::Module;

/// A layer of a [`Summary`], or an op without parameters of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerSummary {
    /// The path of the module whose parameters are used, as in `encoder.0`; `None` for an op without parameters.
    pub path: Option<String>,
    /// The recorded ops, in their order.
    pub ops: Vec<&'static str>,
    /// The shape of the last op's value.
    pub shape: Vec<usize>,
    /// Elements of the parameters, each counted where it is used first.
    pub parameters: u64,
    /// Floating-point operations, see [`summary`].
    pub flops: u64,
    /// Bytes of the ops' values.
    pub bytes: u64,
}

/// The layers of a forward pass. It prints itself as a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// In the order of the pass.
    pub layers: Vec<LayerSummary>,
    /// Elements of all parameters of the model, used or not.
    pub parameters: u64,
    /// Those among them that are frozen.
    pub frozen: u64,
    /// Bytes of all parameters of the model.
    pub parameter_bytes: u64,
}

/// Runs a forward pass of `model` at `input`, and lists its layers: the ops that led to the result, by the module whose parameters they use.
///
/// A linear layer, a product of matrices, a convolution, an attention and a recurrent layer count two operations for each product of
/// elements, any other op one for each element of its value. Views are not listed. An op of constants alone, such as on integers, is
/// not recorded and so not listed. Frozen parameters are not frozen during the pass, so no other thread may use the model. The pass is as in
/// training or evaluation, whichever the model is set to: in training, batch norm's running statistics follow the input.
///
/// ```
/// use models::{Forward, mlp, summary};
/// use tensor::{DType, Tensor};
/// # fn main() -> device::Result<()> {
/// let dev = device::Device::cpu();
/// let model = mlp(&[64, 128, 10], 7, &dev)?;
/// let input = Tensor::zeros(&[32, 64], DType::F32, &dev)?;
/// let summary = summary(&model, &input, |x| model.forward(x))?;
/// assert_eq!((summary.parameters, summary.flops(), summary.bytes()), (9610, 606_208, 17_664));
/// println!("{summary}");
/// // layer  ops          output     parameters   FLOPs  bytes
/// // 0      linear_relu  [32, 128]        8320  524288  16384
/// // 2      linear       [32, 10]         1290   81920   1280
/// // total                                9610  606208  17664
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// What `forward` returns.
pub fn summary(
    model: &dyn Module,
    input: &Tensor,
    forward: impl FnOnce(&Var) -> Result<Var>,
) -> Result<Summary> {
    let named = model.named_parameters();
    let frozen: Vec<&Var> = named.iter().map(|(_, var)| var).filter(|var| !var.requires_grad()).collect();
    let output = {
        frozen.iter().for_each(|var| var.unfreeze());
        let _freeze = OnDrop(|| frozen.iter().for_each(|var| var.freeze()));
        // Random numbers of the program stay as they are.
        with_generator(Generator::new(0), || with_grad(|| forward(&Var::leaf(input.clone()))))
    };
    let mut pass = Pass { sources: HashMap::new(), shapes: HashMap::new(), layers: Vec::new() };
    let elements = |var: &Var| var.value().elements() as u64;
    for (name, parameter) in &named {
        let path = name.rsplit_once('.').map_or("", |(path, _)| path);
        let source = Source { path: path.to_owned(), elements: elements(parameter) };
        pass.sources.extend(parameter.tape().first().map(|leaf| (leaf.sequence, source)));
    }
    for entry in output?.tape() {
        if entry.op != "leaf" {
            pass.add(&entry);
        }
        pass.shapes.insert(entry.sequence, entry.shape);
    }
    let bytes = |var: &Var| elements(var) * var.dtype().size_bytes() as u64;
    Ok(Summary {
        layers: pass.layers,
        parameters: named.iter().map(|(_, var)| elements(var)).sum(),
        frozen: frozen.iter().map(|var| elements(var)).sum(),
        parameter_bytes: named.iter().map(|(_, var)| bytes(var)).sum(),
    })
}

/// Ops whose values are views.
const VIEWS: [&str; 10] =
    ["expand", "flatten", "narrow", "permute", "reshape", "select", "squeeze", "t", "transpose", "unsqueeze"];

/// A parameter, or a view or conversion of parameters.
struct Source {
    path: String,
    /// Elements that no layer counts yet.
    elements: u64,
}

/// The ops of a pass up to one of them, by their numbers.
struct Pass {
    sources: HashMap<u64, Source>,
    shapes: HashMap<u64, Vec<usize>>,
    layers: Vec<LayerSummary>,
}

impl Pass {
    fn add(&mut self, entry: &TapeEntry) {
        let (mut path, mut parameters, mut used) = (None, 0, 0);
        for input in &entry.inputs {
            if let Some(source) = self.sources.get_mut(input) {
                path.get_or_insert_with(|| source.path.clone());
                parameters += mem::take(&mut source.elements);
                used += 1;
            }
        }
        let is_view = VIEWS.contains(&entry.op);
        let is_passed = is_view || ["contiguous", "to_dtype"].contains(&entry.op);
        if let (true, Some(path)) = (is_passed && used == entry.inputs.len(), &path) {
            let source = Source { path: path.clone(), elements: parameters };
            self.sources.insert(entry.sequence, source);
            return;
        }
        if is_view {
            return;
        }
        let (flops, bytes) = (self.flops(entry), product(&entry.shape) * entry.dtype.size_bytes() as u64);
        let (ops, shape) = (vec![entry.op], entry.shape.clone());
        match self.layers.last_mut().filter(|last| path.is_some() && last.path == path) {
            Some(last) => {
                last.ops.extend(ops);
                last.shape = shape;
                (last.parameters, last.flops, last.bytes) =
                    (last.parameters + parameters, last.flops + flops, last.bytes + bytes);
            }
            None => self.layers.push(LayerSummary { path, ops, shape, parameters, flops, bytes }),
        }
    }

    fn flops(&self, entry: &TapeEntry) -> u64 {
        let elements = product(&entry.shape);
        let shapes: Vec<&[usize]> =
            entry.inputs.iter().filter_map(|input| self.shapes.get(input)).map(Vec::as_slice).collect();
        // A layer's input, which is not listed if it is a constant, comes before the weight, and the bias of one axis behind it.
        let weight = shapes.iter().rposition(|shape| shape.len() > 1).unwrap_or(1);
        let (before, weight) = shapes.split_at(weight.min(shapes.len().saturating_sub(1)));
        let for_each = weight.first().map_or(1, |weight| product(weight.get(1..).unwrap_or_default()));
        let products = match (entry.op, &shapes[..], before) {
            ("linear" | "linear_relu" | "conv2d" | "conv2d_relu", ..) => elements * for_each,
            ("conv_transpose2d" | "conv_transpose2d_relu", _, [input]) => product(input) * for_each,
            ("matmul", [lhs, _], _) => elements * axis(lhs, 1),
            // The other operand is a constant: the tracked one has the columns of the result, or its rows.
            ("matmul", [rhs], _) if rhs.last() == entry.shape.last() => elements * axis(rhs, 2),
            ("matmul", [lhs], _) => elements * axis(lhs, 1),
            ("recurrent", [products, weight, ..], _) => product(products) * axis(weight, 1),
            ("attention", [queries, keys, _], _) => (elements + product(queries)) * axis(keys, 2),
            ("self_attention", ..) => 2 * elements * axis(&entry.shape, 2),
            _ => return elements,
        };
        2 * products
    }
}

fn product(shape: &[usize]) -> u64 {
    shape.iter().map(|&size| size as u64).product()
}

/// The size of an axis that is counted from the end, the last one by 1.
fn axis(shape: &[usize], from_end: usize) -> u64 {
    shape.len().checked_sub(from_end).map_or(1, |axis| shape[axis] as u64)
}

impl Summary {
    /// The floating-point operations of all layers.
    pub fn flops(&self) -> u64 {
        self.layers.iter().map(|layer| layer.flops).sum()
    }

    /// The bytes of all layers' values.
    pub fn bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.bytes).sum()
    }
}

/// A line for each layer, their sums, and how many parameters are frozen, if some are.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers =
            |parameters: u64, flops: u64, bytes: u64| [parameters, flops, bytes].map(|n| n.to_string());
        let head = ["layer", "ops", "output", "parameters", "FLOPs", "bytes"].map(str::to_owned);
        let line = |layer: &LayerSummary| {
            let path = match layer.path.as_deref() {
                None => "-",
                Some("") => "(model)",
                Some(path) => path,
            };
            let [parameters, flops, bytes] = numbers(layer.parameters, layer.flops, layer.bytes);
            [path.to_owned(), layer.ops.join(", "), format!("{:?}", layer.shape), parameters, flops, bytes]
        };
        let [parameters, flops, bytes] = numbers(self.parameters, self.flops(), self.bytes());
        let total = ["total".to_owned(), String::new(), String::new(), parameters, flops, bytes];
        let lines: Vec<[String; 6]> =
            [head].into_iter().chain(self.layers.iter().map(line)).chain([total]).collect();
        let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
        let [a, b, c, d, e, g] = [0, 1, 2, 3, 4, 5].map(width);
        for [layer, ops, output, parameters, flops, bytes] in &lines {
            writeln!(f, "{layer:a$}  {ops:b$}  {output:c$}  {parameters:>d$}  {flops:>e$}  {bytes:>g$}")?;
        }
        if self.frozen > 0 {
            writeln!(f, "{} of the parameters are frozen", self.frozen)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use device::{DType, Device};
    use tensor::Tensor;

    use super::*;
    use crate::{
        Conv1d, Conv1dOptions, ConvTranspose2d, Embedding, Flatten, Forward, Linear, Lstm,
        MultiheadAttention, Relu, Sequential,
    };

    fn zeros(shape: &[usize], dtype: DType) -> Tensor {
        Tensor::zeros(shape, dtype, &Device::cpu()).unwrap()
    }

    fn layers(summary: &Summary) -> Vec<(Option<&str>, Vec<&str>, u64, u64)> {
        let facts =
            |layer: &LayerSummary| (layer.path.clone(), layer.ops.clone(), layer.parameters, layer.flops);
        let all = summary.layers.iter();
        all.map(|layer| (layer.path.as_deref(), facts(layer).1, layer.parameters, layer.flops)).collect()
    }

    #[test]
    fn a_table_of_layers() {
        let dev = Device::cpu();
        let options = Conv1dOptions { padding: 1, ..Conv1dOptions::default() };
        let model = Sequential::new()
            .push(Conv1d::with_options(3, 4, 3, options, &dev).unwrap())
            .push(Relu)
            .push(Flatten)
            .push(Linear::new(20, 2, &dev).unwrap());
        let parameters = model.parameters();
        parameters[0].freeze();
        let summary = summary(&model, &zeros(&[2, 3, 5], DType::F32), |x| model.forward(x)).unwrap();
        assert!(!parameters[0].requires_grad() && parameters[1].requires_grad());
        // 2 * 40 * 9 operations for 40 elements of 3 channels and 3 taps; 2 * 4 * 20 for the linear layer.
        let expected = "\
layer  ops     output        parameters  FLOPs  bytes
0      conv2d  [2, 4, 1, 5]          40    720    160
-      relu    [2, 4, 5]              0     40    160
3      linear  [2, 2]                42    160     16
total                                82    920    336
36 of the parameters are frozen
";
        assert_eq!(summary.to_string(), expected);
    }

    #[test]
    fn operations_of_products() {
        let dev = Device::cpu();
        let embedding = Embedding::new(10, 4, &dev).unwrap();
        let tokens = zeros(&[2, 3], DType::I64);
        let found = summary(&embedding, &tokens, |x| embedding.forward(x)).unwrap();
        assert_eq!(layers(&found), [(Some(""), vec!["embedding"], 40, 24)]);
        let lstm = Lstm::new(3, 5, &dev).unwrap();
        let found = summary(&lstm, &zeros(&[7, 2, 3], DType::F32), |x| lstm.forward(x)).unwrap();
        // For each of 14 rows 20 * 3 and 20 * 5 products.
        assert_eq!(layers(&found), [(Some(""), vec!["linear", "recurrent"], 200, 1680 + 2800)]);
        let attention = MultiheadAttention::new(8, 2, &dev).unwrap();
        let found = summary(&attention, &zeros(&[2, 3, 8], DType::F32), |x| attention.forward(x)).unwrap();
        // 6 rows with 24 * 8 and 8 * 8 products, and between them, twice, 3 * 3 scores of 4 elements for 4 heads in all.
        let expected = [
            (Some(""), vec!["linear"], 216, 2304),
            (None, vec!["self_attention"], 0, 576),
            (Some("out_proj"), vec!["linear"], 72, 768),
        ];
        assert_eq!(layers(&found), expected);
        let layer = ConvTranspose2d::new(2, 3, [2, 2], &dev).unwrap();
        let found = summary(&layer, &zeros(&[1, 2, 4, 4], DType::F32), |x| layer.forward(x)).unwrap();
        // Each of 32 elements meets 3 * 2 * 2 weights.
        assert_eq!(layers(&found), [(Some(""), vec!["conv_transpose2d"], 27, 768)]);
        let weight = Var::leaf(zeros(&[4, 6], DType::F32));
        let x = Var::constant(zeros(&[5, 4], DType::F32));
        for (forward, flops) in [
            (Box::new(|x: &Var| x.matmul(&weight)) as Box<dyn Fn(&Var) -> Result<Var>>, 240),
            (Box::new(|_: &Var| x.matmul(&weight)), 240),
            (Box::new(|x: &Var| weight.t()?.matmul(&x.t()?.detach())), 240),
        ] {
            let found = summary(&weight, x.value(), |x| forward(x)).unwrap();
            assert_eq!(found.layers.last().unwrap().flops, flops);
            assert_eq!(
                (found.parameters, found.parameter_bytes, found.layers.last().unwrap().parameters),
                (24, 96, 24)
            );
        }
        let error = summary(&weight, x.value(), |x| weight.matmul(x)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "matmul: shapes [4, 6] and [5, 4] do not fit: lhs [.., m, k] takes rhs [.., k, n]"
        );
    }
}
