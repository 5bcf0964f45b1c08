//! Values, first values and names of the layers of sequence models.

use approx::assert_abs_diff_eq;
use autograd::Var;
use autograd::ops::BagMode;
use device::{DType, Device, Error, ErrorKind};
use tensor::{RandomKey, Tensor};

use super::*;
use crate::{Forward, Module};

fn constant(values: &[f32], shape: &[usize]) -> Var {
    Var::constant(Tensor::from_slice(values, shape, &Device::cpu()).unwrap())
}

fn indices(values: &[i64], shape: &[usize]) -> Var {
    Var::constant(Tensor::from_slice(values, shape, &Device::cpu()).unwrap())
}

fn values(v: &Var) -> Vec<f32> {
    v.value().contiguous().unwrap().to_vec().unwrap()
}

fn names(module: &dyn Module) -> Vec<String> {
    module.named_parameters().into_iter().map(|(name, _)| name).collect()
}

#[track_caller]
fn close(found: &Var, expected: &[f32]) {
    assert_abs_diff_eq!(values(found)[..], *expected, epsilon = 1e-5);
}

fn uniform(shape: &[usize], op: u64) -> Var {
    let key = RandomKey { seed: 9, op };
    Var::constant(Tensor::uniform(shape, -1.0, 1.0, DType::F32, key, &Device::cpu()).unwrap())
}

#[test]
fn norms_start_as_the_plain_functions() {
    let dev = Device::cpu();
    let x = constant(&[1.0, 3.0, 2.0, 2.0, 8.0, 0.0], &[1, 2, 3]);
    let layer = LayerNorm::new(&[2, 3], &dev).unwrap();
    close(&layer.forward(&x).unwrap(), &values(&x.layer_norm(&[2, 3], None, None, 1e-5).unwrap()));
    assert_eq!(names(&layer), ["weight", "bias"]);
    let rms = RmsNorm::new(&[3], &dev).unwrap();
    close(&rms.forward(&x).unwrap(), &values(&x.rms_norm(&[3], None, None).unwrap()));
    assert_eq!(names(&rms), ["weight"]);
    let group = GroupNorm::new(2, 2, &dev).unwrap();
    close(&group.forward(&x).unwrap(), &values(&x.layer_norm(&[3], None, None, 1e-5).unwrap()));
    assert_eq!((names(&group).len(), group.parameters()[0].shape()), (2, &[2][..]));
    assert!(matches!(
        GroupNorm::new(3, 4, &dev).as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { .. })
    ));
    let of = |dtype| NormOptions { bias: false, dtype, ..NormOptions::default() };
    assert!(LayerNorm::with_options(&[2], of(DType::I64), &dev).is_err());
    assert_eq!(names(&LayerNorm::with_options(&[2], of(DType::F64), &dev).unwrap()), ["weight"]);
    assert_eq!(names(&GroupNorm::with_options(1, 2, of(DType::F64), &dev).unwrap()), ["weight"]);
}

#[test]
fn embeddings_are_normal_and_the_padding_is_zero() {
    let dev = Device::cpu();
    let key = Some(RandomKey { seed: 3, op: 1 });
    let options = EmbeddingOptions { padding_idx: Some(-1), key, ..EmbeddingOptions::default() };
    let layer = Embedding::with_options(200, 50, options, &dev).unwrap();
    let w = values(layer.weight());
    let mean_square = w.iter().map(|v| v * v).sum::<f32>() / w.len() as f32;
    assert!((mean_square - 1.0).abs() < 0.05, "{mean_square}");
    assert!(w[199 * 50..].iter().all(|v| *v == 0.0) && w[..50].iter().all(|v| *v != 0.0));
    let taken = layer.forward(&indices(&[199, 4], &[2, 1])).unwrap();
    assert_eq!(taken.shape(), [2, 1, 50]);
    assert_eq!(values(&taken)[50..], w[4 * 50..5 * 50]);
    let wrong = EmbeddingOptions { padding_idx: Some(200), ..options };
    assert!(matches!(
        Embedding::with_options(200, 50, wrong, &dev).as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { .. })
    ));
}

#[test]
fn bags_are_means_or_sums_of_rows() {
    let dev = Device::cpu();
    let key = Some(RandomKey { seed: 3, op: 1 });
    let options = EmbeddingOptions { key, mode: BagMode::Sum, ..EmbeddingOptions::default() };
    let sum = EmbeddingBag::with_options(5, 2, options, &dev).unwrap();
    let table = values(&sum.parameters()[0]);
    let row = |i: usize| [table[2 * i], table[2 * i + 1]];
    let added = |a: usize, b: usize| [row(a)[0] + row(b)[0], row(a)[1] + row(b)[1]];
    close(&sum.forward(&indices(&[1, 2, 4, 4], &[2, 2])).unwrap(), &[added(1, 2), added(4, 4)].concat());
    let offsets = Tensor::from_slice(&[0_i64, 1], &[2], &dev).unwrap();
    let bags = sum.bags(indices(&[3, 1, 2], &[3]).value(), &offsets).unwrap();
    close(&bags, &[row(3), added(1, 2)].concat());
    let mean = EmbeddingBag::new(5, 2, &dev).unwrap();
    assert_eq!(
        (names(&mean), mean.forward(&indices(&[0, 0], &[1, 2])).unwrap().shape()),
        (vec!["weight".into()], &[1, 2][..])
    );
}

#[test]
fn attention_has_the_names_and_the_first_values_of_torch() {
    let dev = Device::cpu();
    let options = MultiheadOptions { key: Some(RandomKey { seed: 1, op: 1 }), ..Default::default() };
    let layer = MultiheadAttention::with_options(64, 4, options, &dev).unwrap();
    let parameters = layer.named_parameters();
    let shapes: Vec<(&str, &[usize])> = parameters.iter().map(|(n, p)| (n.as_str(), p.shape())).collect();
    let expected: [(&str, &[usize]); 4] = [
        ("in_proj_weight", &[192, 64]),
        ("in_proj_bias", &[192]),
        ("out_proj.weight", &[64, 64]),
        ("out_proj.bias", &[64]),
    ];
    assert_eq!(shapes, expected);
    let range = |at: usize| values(&parameters[at].1).iter().fold(0.0_f32, |m, v| m.max(v.abs()));
    let glorot = (6.0_f32 / 256.0).sqrt();
    assert!(range(0) <= glorot && range(0) > 0.99 * glorot && range(2) <= 0.125 && range(2) > 0.12);
    assert_eq!((range(1), range(3)), (0.0, 0.0));
    for bad in [0, 3] {
        assert!(matches!(
            MultiheadAttention::new(64, bad, &dev).as_ref().map_err(Error::kind),
            Err(ErrorKind::InvalidArgument { .. })
        ));
    }
    let dropout = MultiheadOptions { dropout: 2.0, ..options };
    assert!(MultiheadAttention::with_options(64, 4, dropout, &dev).is_err());
}

/// The definition, head by head.
fn by_definition(layer: &MultiheadAttention, query: &Var, key: &Var, value: &Var, heads: usize) -> Var {
    let parameters = layer.parameters();
    let (weight, bias) = (&parameters[0], &parameters[1]);
    let e = weight.shape()[1];
    let map = |x: &Var, part: usize| {
        let (w, b) = (weight.narrow(0, part * e, e).unwrap(), bias.narrow(0, part * e, e).unwrap());
        x.matmul(&w.t().unwrap()).unwrap().add(&b).unwrap()
    };
    let (q, k, v) = (map(query, 0), map(key, 1), map(value, 2));
    let width = e / heads;
    let joined: Vec<Var> = (0..heads)
        .map(|head| {
            let part = |x: &Var| x.narrow(-1, head * width, width).unwrap();
            let scores = part(&q).matmul(&part(&k).transpose(-2, -1).unwrap()).unwrap();
            let weights = scores.mul_scalar(1.0 / (width as f64).sqrt()).unwrap().softmax(-1).unwrap();
            weights.matmul(&part(&v)).unwrap()
        })
        .collect();
    let joined = Var::cat(&joined.iter().collect::<Vec<_>>(), -1).unwrap();
    joined.matmul(&parameters[2].t().unwrap()).unwrap().add(&parameters[3]).unwrap()
}

#[test]
fn attention_is_the_definition_to_itself_and_to_others() {
    let layer = MultiheadAttention::new(8, 2, &Device::cpu()).unwrap();
    for (parameter, op) in layer.parameters().iter().zip(10..) {
        parameter.value().copy_(uniform(parameter.shape(), op).value()).unwrap();
    }
    let (x, other) = (uniform(&[3, 5, 8], 1), uniform(&[3, 7, 8], 2));
    close(&layer.forward(&x).unwrap(), &values(&by_definition(&layer, &x, &x, &x, 2)));
    let value = uniform(&[3, 7, 8], 3);
    close(
        &layer.attend(&x, &other, &value, None).unwrap(),
        &values(&by_definition(&layer, &x, &other, &value, 2)),
    );
    // A mask that shows one key gives that key's value.
    let mut seen = [false; 5];
    seen[2] = true;
    let mask = Tensor::from_slice(&seen, &[5], &Device::cpu()).unwrap();
    let masked = layer.attend_masked(&x, &mask).unwrap();
    let third = x.narrow(1, 2, 1).unwrap();
    close(
        &masked.narrow(1, 4, 1).unwrap(),
        &values(&by_definition(&layer, &x, &third, &third, 2).narrow(1, 4, 1).unwrap()),
    );
}

#[test]
fn dropout_of_weights_acts_in_training_only() {
    let options = MultiheadOptions { dropout: 0.5, ..Default::default() };
    let layer = MultiheadAttention::with_options(8, 2, options, &Device::cpu()).unwrap();
    let x = uniform(&[1, 6, 8], 1);
    let run = || values(&layer.forward(&x).unwrap());
    assert_ne!(run(), run());
    layer.set_training(false);
    assert_eq!(run(), run());
}
