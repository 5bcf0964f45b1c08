//! Names, errors and dropout of recurrent layers; their values are compared with PyTorch's in `tests/everyday.rs`.

use autograd::Var;
use device::{DType, Device, Error, ErrorKind};
use tensor::{RandomKey, Tensor};

use super::*;
use crate::{Forward, Module};

fn ones(shape: &[usize]) -> Var {
    Var::constant(Tensor::ones(shape, DType::F32, &Device::cpu()).unwrap())
}

#[test]
fn parameters_have_the_names_of_pytorch() {
    let options = RecurrentOptions { layers: 2, bidirectional: true, ..RecurrentOptions::default() };
    let lstm = Lstm::with_options(3, 5, options, &Device::cpu()).unwrap();
    let named = lstm.named_parameters();
    let names: Vec<&str> = named.iter().map(|(name, _)| &name[..]).collect();
    assert_eq!(
        names[..5],
        ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0", "weight_ih_l0_reverse"]
    );
    assert_eq!((names.len(), names[15]), (16, "bias_hh_l1_reverse"));
    let shapes: Vec<&[usize]> = named.iter().map(|(_, parameter)| parameter.shape()).collect();
    assert_eq!((shapes[0], shapes[1], shapes[8]), (&[20, 3][..], &[20, 5][..], &[20, 10][..]));
    let bound = 1.0 / 5_f32.sqrt();
    assert!(named.iter().all(|(_, p)| p.to_vec::<f32>().unwrap().iter().all(|x| x.abs() <= bound)));
}

#[test]
fn inputs_and_states_that_do_not_fit_are_refused() {
    let gru = Gru::new(3, 5, &Device::cpu()).unwrap();
    for shape in [&[7, 2][..], &[7, 2, 4], &[0, 2, 3], &[7, 0, 3]] {
        let refused = gru.forward(&ones(shape));
        assert!(
            matches!(refused.as_ref().map_err(Error::kind), Err(ErrorKind::InvalidArgument { .. })),
            "{shape:?}"
        );
    }
    assert!(gru.run(&ones(&[7, 2, 3]), Some(&ones(&[1, 2, 5]))).is_ok());
    let refused = gru.run(&ones(&[7, 2, 3]), Some(&ones(&[1, 3, 5]))).map(|_| ());
    assert!(matches!(refused.as_ref().map_err(Error::kind), Err(ErrorKind::ShapeMismatch { .. })));
    for options in [
        RecurrentOptions { layers: 0, ..RecurrentOptions::default() },
        RecurrentOptions { dropout: 1.5, ..RecurrentOptions::default() },
        RecurrentOptions { dtype: DType::I64, ..RecurrentOptions::default() },
    ] {
        assert!(Rnn::with_options(3, 5, options, &Device::cpu()).is_err());
    }
    assert!(gru.with_parameters(&[ones(&[15, 3])]).is_err());
}

#[test]
fn dropout_is_between_layers_in_training() {
    let key = Some(RandomKey { seed: 3, op: 1 });
    let options = RecurrentOptions { layers: 2, dropout: 0.5, key, ..RecurrentOptions::default() };
    let of = |options| Rnn::with_options(3, 8, options, &Device::cpu()).unwrap();
    let (with, without) = (of(options), of(RecurrentOptions { dropout: 0.0, ..options }));
    let values = |layer: &Rnn| layer.forward(&ones(&[4, 2, 3])).unwrap().to_vec::<f32>().unwrap();
    assert_ne!(values(&with), values(&without));
    with.set_training(false);
    assert_eq!(values(&with), values(&without));
}

#[test]
fn one_axis_is_an_image_of_height_one() {
    let dev = Device::cpu();
    let x = Var::constant(Tensor::arange(0, 12, 1, DType::F32, &dev).unwrap().reshape(&[1, 2, 6]).unwrap());
    let options = Conv1dOptions { stride: 2, padding: 1, bias: false, ..Conv1dOptions::default() };
    let layer = Conv1d::with_options(2, 1, 3, options, &dev).unwrap();
    assert_eq!(layer.parameters()[0].shape(), [1, 2, 3]);
    layer.parameters()[0].value().fill_(1.0).unwrap();
    // Sums of three neighbours in both channels, from the one before the first.
    assert_eq!(layer.forward(&x).unwrap().to_vec::<f32>().unwrap(), [14.0, 30.0, 42.0]);
    assert_eq!(MaxPool1d(3).forward(&x).unwrap().to_vec::<f32>().unwrap(), [2.0, 5.0, 8.0, 11.0]);
    assert_eq!(AvgPool1d(2).forward(&x).unwrap().to_vec::<f32>().unwrap(), [0.5, 2.5, 4.5, 6.5, 8.5, 10.5]);
    assert!(layer.forward(&ones(&[2, 6])).is_err());
    let norm = BatchNorm1d::new(2, &dev).unwrap();
    let rows = norm.forward(&x).unwrap();
    let pairs = norm.forward(&x.transpose(1, 2).unwrap().reshape(&[6, 2]).unwrap()).unwrap();
    assert_eq!(rows.shape(), [1, 2, 6]);
    let turned = rows.transpose(1, 2).unwrap().value().contiguous().unwrap().to_vec::<f32>().unwrap();
    assert_eq!(pairs.to_vec::<f32>().unwrap(), turned);
    let image = ones(&[1, 1, 2, 2]);
    let upsampled = Upsample::new(1.5, UpsampleMode::Nearest).forward(&image).unwrap();
    assert_eq!(upsampled.shape(), [1, 1, 3, 3]);
    let instance = GroupNorm::instance(2, &dev).unwrap().forward(&x).unwrap();
    let means = instance.mean(&[2], false).unwrap().to_vec::<f32>().unwrap();
    assert!(means.iter().all(|mean| mean.abs() < 1e-6));
}

#[test]
fn a_transposed_convolution_adds_its_kernel_at_each_element() {
    let dev = Device::cpu();
    let of = |values: &[f32]| Tensor::from_slice(values, &[1, 1, values.len()], &dev).unwrap();
    let x = Var::constant(of(&[1.0, 2.0, 3.0]));
    let plain = Conv1dOptions { bias: false, ..Conv1dOptions::default() };
    let cases: [(Conv1dOptions, &[f32]); 4] = [
        (plain, &[1.0, 12.0, 123.0, 230.0, 300.0]),
        (Conv1dOptions { stride: 2, ..plain }, &[1.0, 10.0, 102.0, 20.0, 203.0, 30.0, 300.0]),
        (
            Conv1dOptions { stride: 2, padding: 1, output_padding: 1, ..plain },
            &[10.0, 102.0, 20.0, 203.0, 30.0, 300.0],
        ),
        (Conv1dOptions { dilation: 2, ..plain }, &[1.0, 2.0, 13.0, 20.0, 130.0, 200.0, 300.0]),
    ];
    for (options, expected) in cases {
        let layer = ConvTranspose1d::with_options(1, 1, 3, options, &dev).unwrap();
        layer.weight().value().copy_(&of(&[1.0, 10.0, 100.0])).unwrap();
        assert_eq!(layer.forward(&x).unwrap().to_vec::<f32>().unwrap(), expected, "{options:?}");
    }
    let bias = ConvTranspose1d::new(4, 6, 3, &dev).unwrap();
    assert_eq!((bias.weight().shape(), bias.bias().unwrap().shape()), (&[4, 6, 3][..], &[6][..]));
    let options = Conv1dOptions { output_padding: 1, ..plain };
    let error = ConvTranspose1d::with_options(1, 1, 3, options, &dev).map(drop).unwrap_err();
    assert_eq!(
        error.to_string(),
        "conv_transpose1d: output_padding must be below the stride or the dilation, got 1"
    );
    let error = bias.forward(&ones(&[2, 4])).unwrap_err();
    assert_eq!(error.to_string(), "conv_transpose1d: input must be [n, c, l], got shape [2, 4]");
}
