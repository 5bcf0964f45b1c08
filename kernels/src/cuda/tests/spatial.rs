//! Convolutions, pooling and batch normalisation.

use device::Error;

use super::*;
use crate::batch_norm::tests::SHAPES;
use crate::conv::tests::{CASES, Case};
use crate::pool::tests::{MAX, MEANS};
use crate::testing::values_f32;
use crate::{
    Activation, ChannelNorm, Conv2d, ConvPass, avg_pool2d, avg_pool2d_grad, batch_norm, batch_norm_grad,
    batch_norm_workspace, conv2d, conv2d_input_grad, conv2d_wants_channels_last, conv2d_weight_grad,
    follow_statistics, max_pool2d, max_pool2d_grad, max_pool2d_index_dtype, max_pool2d_pick,
};

/// Small integers, whose products and sums are exact in any order, without -0; in 16 bits so small that results are, too.
fn whole<T: Real>(stream: &Stream, seed: u64, shape: &[usize]) -> Array<T> {
    Array::new(stream, &whole_values(seed, shape.iter().product()), shape)
}

fn whole_values<T: Real>(seed: u64, len: usize) -> Vec<T> {
    let scale = if T::DTYPE.is_half() { 1.0 } else { 5.0 };
    values(seed, len).into_iter().map(|v| T::of((v * scale).round() + 0.0)).collect()
}

/// Launches a convolution with a workspace as large as it needs, of which nothing is known.
fn launch<T: Real>(stream: &Stream, conv: Result<Conv2d<'_>>) -> Result<()> {
    let conv = conv?;
    let memory = match conv.workspace() {
        0 => return conv.launch(None),
        elements => Array::full(stream, T::Computed::of(7.0), &[elements]),
    };
    conv.launch(Some(memory.view()))
}

/// As [`both`], with cuDNN and without it.
fn both_ways() -> impl Iterator<Item = Both> {
    let without = CudaConfig { cudnn: Some(false), ..CudaConfig::default() };
    [CudaConfig::default(), without].into_iter().filter_map(both_with)
}

fn is_cudnn(stream: &Stream) -> bool {
    crate::convolutions(stream.device()).expect("an answer").starts_with("cuDNN")
}

/// The three maps of operands that `make` makes.
fn each_pass<T: Real>(
    both: &Both,
    case: &Case,
    tolerance: f64,
    make: impl Fn(&Stream, ConvPass, u64, &[usize]) -> Array<T>,
) {
    let (images, filter, results) = (case.images, case.filter(), case.results());
    let how = (case.window, case.groups);
    let activations = [Activation::None, Activation::Relu];
    for (bias, activation) in [(false, activations[0]), (true, activations[0]), (true, activations[1])] {
        both.close(tolerance, ("conv2d", case.name, T::DTYPE, bias, activation), |stream| {
            let (x, w) =
                (make(stream, ConvPass::Forward, 1, &images), make(stream, ConvPass::Forward, 2, &filter));
            let (b, out) = (
                make(stream, ConvPass::Forward, 3, &filter[..1]),
                make(stream, ConvPass::Forward, 4, &results),
            );
            let bias = bias.then(|| b.view());
            let conv = conv2d(stream, x.view(), w.view(), bias, how, out.view());
            let conv = conv.and_then(|conv| conv.activated(activation));
            launch::<T>(stream, conv).map(|()| out)
        });
        both.close(tolerance, ("conv2d_input_grad", case.name, T::DTYPE, bias, activation), |stream| {
            let (g, w) = (
                make(stream, ConvPass::InputGrad, 1, &results),
                make(stream, ConvPass::InputGrad, 2, &filter),
            );
            let (b, out) = (
                make(stream, ConvPass::InputGrad, 3, &images[1..2]),
                make(stream, ConvPass::InputGrad, 4, &images),
            );
            let bias = bias.then(|| b.view());
            let conv = conv2d_input_grad(stream, g.view(), w.view(), bias, how, out.view());
            let conv = conv.and_then(|conv| conv.activated(activation));
            launch::<T>(stream, conv).map(|()| out)
        });
    }
    both.close(tolerance, ("conv2d_weight_grad", case.name, T::DTYPE), |stream| {
        let (x, g) =
            (make(stream, ConvPass::WeightGrad, 1, &images), make(stream, ConvPass::WeightGrad, 2, &results));
        let out = make(stream, ConvPass::WeightGrad, 4, &filter);
        let conv = conv2d_weight_grad(stream, x.view(), g.view(), how, out.view());
        launch::<T>(stream, conv).map(|()| out)
    });
}

fn convolutions_of<T: Real>() {
    for (both, case) in both_ways().flat_map(|both| CASES.iter().map(move |case| (both.clone(), case))) {
        // All sums are whole numbers. In 16 bits cuDNN may transform images first, so that sums of several hundred products are
        // off by 2^-15 before they are rounded.
        let tolerance = if T::DTYPE.is_half() && is_cudnn(&both.cuda) { 2_f64.powi(-12) } else { 0.0 };
        each_pass::<T>(&both, case, tolerance, |stream, _, seed, shape| whole(stream, seed, shape));
    }
}

#[test]
fn convolutions() {
    convolutions_of::<f32>();
    convolutions_of::<f64>();
    convolutions_of::<bf16>();
    convolutions_of::<f16>();
}

#[test]
fn convolutions_on_tensor_cores() {
    let without = CudaConfig { cudnn: Some(false), ..CudaConfig::default() };
    let Some(both) = both_with(without) else { return };
    for case in CASES.iter().filter(|case| case.name.starts_with("many,")) {
        let [x, w, out] =
            [case.images, case.filter(), case.results()].map(|shape| Array::full(&both.cuda, 0_f32, &shape));
        let conv = conv2d(&both.cuda, x.view(), w.view(), None, (case.window, case.groups), out.view());
        assert_eq!(conv.expect("operands that fit").workspace(), 0, "patches of {}", case.name);
    }
    let whole = |stream: &Stream, _, seed, shape: &[usize]| whole(stream, seed, shape);
    let any = |stream: &Stream, _, seed, shape: &[usize]| {
        Array::new(stream, &values_f32(seed, shape.iter().product()), shape)
    };
    // Sums of thousands of products are as large as 64, where neighbours in F32 lie 8e-6 apart. Factors of TF32 have eleven bits.
    for (tf32, tolerance) in [(false, 2e-5), (true, 2e-2)] {
        both.cuda.device().set_tf32(tf32);
        for case in CASES.iter().filter(|case| case.name.starts_with("many")) {
            each_pass::<f32>(&both, case, 0.0, whole);
            each_pass::<f32>(&both, case, tolerance, any);
        }
    }
    both.cuda.device().set_tf32(false);
    for case in side_by_side() {
        each_pass::<f32>(&both, &case, 0.0, whole);
    }
}

/// Tiles of places that fill most of an image: of whole channels and of some, of one and of several in a part of a sum.
fn in_tiles() -> [Case; 4] {
    let same = crate::Window { padding: [1; 2], ..crate::Window::new([3; 2]) };
    let strided = crate::Window { stride: [1, 2], ..same };
    let uneven = crate::Window { padding: [2; 2], dilation: [3, 1], ..crate::Window::new([2, 5]) };
    let of = |name, images, filters, window| Case { name, images, filters, groups: 1, window };
    [
        of("whole", [3, 40, 16, 31], 72, same),
        of("strided", [2, 72, 15, 62], 24, strided),
        of("uneven", [1, 24, 31, 31], 40, uneven),
        of("many images", [70, 16, 16, 16], 40, same),
    ]
}

fn channels_last_of<T: Real>(
    both: &Both,
    cases: &[Case],
    tolerance: f64,
    values: impl Fn(u64, usize) -> Vec<T>,
) {
    for case in cases {
        each_pass::<T>(both, case, tolerance, |stream, pass, seed, shape| {
            let (elements, how) = (values(seed, shape.iter().product()), (case.window, case.groups));
            let shapes = [case.images, case.filter(), case.results()];
            let last = conv2d_wants_channels_last(stream, ("test", pass), T::DTYPE, shapes, (how, false));
            let last = last.expect("sizes that fit");
            let strided = case.window.stride != [1; 2];
            // There is no room for what tiles of TF32 see then.
            let apart = strided
                && (pass == ConvPass::InputGrad || pass == ConvPass::WeightGrad && !T::DTYPE.is_half());
            assert_eq!(last, stream.is_cuda() && !apart, "{} {pass:?}", case.name);
            match shape.len() {
                4 if last => Array::stored_as(stream, &elements, shape, &[0, 2, 3, 1]),
                _ => Array::new(stream, &elements, shape),
            }
        });
    }
}

#[test]
fn convolutions_of_channels_that_lie_last() {
    let Some(both) = both_ways().last() else { return };
    // Of no places there is nothing to share, and an image's gradient is its bias.
    let shapes = [[2, 32, 32, 32], [32, 32, 3, 3], [2, 32, 0, 0]];
    let how = ((in_tiles()[0].window, 1), true);
    let last =
        conv2d_wants_channels_last(&both.cuda, ("test", ConvPass::InputGrad), bf16::DTYPE, shapes, how);
    assert!(!last.expect("sizes that fit"));
    let [few @ .., _] = &in_tiles();
    channels_last_of::<bf16>(&both, &in_tiles(), 0.0, whole_values);
    channels_last_of::<f16>(&both, &in_tiles(), 0.0, whole_values);
    both.cuda.device().set_tf32(true);
    channels_last_of::<f32>(&both, &in_tiles(), 0.0, whole_values);
    // Sums of thousands of factors that were rounded to eleven bits are off by more.
    channels_last_of::<f32>(&both, few, 2e-2, values_f32);
    both.cuda.device().set_tf32(false);
}

/// Windows side by side, of so many places that tensor cores are quickest in F32.
fn side_by_side() -> [Case; 2] {
    let of = |name, images, kernel| {
        let window = crate::Window { stride: kernel, ..crate::Window::new(kernel) };
        Case { name, images, filters: 33, groups: 1, window }
    };
    [of("squares", [17, 9, 64, 64], [2, 2]), of("lines", [5, 9, 14, 1024], [1, 4])]
}

/// With rows that do not fill a tile, of which a thread's neighbours are pixels in a row.
#[test]
fn windows_side_by_side_need_no_patches() {
    let Some(Both { cuda, .. }) = both() else { return };
    for case in side_by_side() {
        let (x, w) = (whole::<f32>(&cuda, 1, &case.images), whole::<f32>(&cuda, 2, &case.filter()));
        let (y, how) = (whole::<f32>(&cuda, 3, &case.results()), (case.window, 1));
        let forward = conv2d(&cuda, x.view(), w.view(), None, how, y.view()).expect("operands that fit");
        let grad =
            conv2d_input_grad(&cuda, y.view(), w.view(), None, how, x.view()).expect("operands that fit");
        assert_eq!((forward.workspace(), grad.workspace()), (0, 0), "{}", case.name);
    }
}

/// Of 520 tiles of images, more than a warp has elements of a block.
#[test]
fn gradients_of_few_filters_sum_many_tiles() {
    let Some(both) = both() else { return };
    let (images, filter, results) = ([130, 1, 64, 64], [3, 1, 3, 3], [130, 3, 62, 62]);
    both.same("conv2d_weight_grad of many tiles", |stream| {
        let (x, g) = (whole::<f32>(stream, 1, &images), whole::<f32>(stream, 2, &results));
        let out = Array::full(stream, 9.0_f32, &filter);
        let how = (crate::Window::new([3, 3]), 1);
        launch::<f32>(stream, conv2d_weight_grad(stream, x.view(), g.view(), how, out.view())).map(|()| out)
    });
}

/// So many filters, or so large patches, that a workspace takes two of the three images at a time.
fn turns_of<T: Real>() {
    let Some(both) = both_ways().last() else { return };
    // With so few channels and filters that they do not fill tiles of products.
    let apart = crate::Window { dilation: [2; 2], ..crate::Window::new([2, 2]) };
    let dense = ([3, 15, 342, 332], [15, 15, 2, 2], [3, 15, 340, 330], apart);
    let tiles = crate::Window { stride: [50; 2], ..crate::Window::new([50; 2]) };
    let tiled = ([3, 2, 1750, 1750], [2, 2, 50, 50], [3, 2, 35, 35], tiles);
    for (images, filter, results, window) in [dense, tiled] {
        let (how, with_memory) = ((window, 1), |stream: &Stream, conv: Result<Conv2d<'_>>| {
            let elements = conv.as_ref().map_or(0, Conv2d::workspace);
            assert!(!stream.is_cuda() || (12_000_000..18_000_000).contains(&elements), "{elements} elements");
            launch::<T>(stream, conv)
        });
        both.same(("conv2d in turns", T::DTYPE, window), |stream| {
            let (x, w) = (whole::<T>(stream, 1, &images), whole::<T>(stream, 2, &filter));
            let out = whole::<T>(stream, 4, &results);
            with_memory(stream, conv2d(stream, x.view(), w.view(), None, how, out.view())).map(|()| out)
        });
        both.same(("conv2d_input_grad in turns", T::DTYPE, window), |stream| {
            let (g, w) = (whole::<T>(stream, 1, &results), whole::<T>(stream, 2, &filter));
            let out = whole::<T>(stream, 4, &images);
            with_memory(stream, conv2d_input_grad(stream, g.view(), w.view(), None, how, out.view()))
                .map(|()| out)
        });
        both.same(("conv2d_weight_grad in turns", T::DTYPE, window), |stream| {
            let (x, g) = (whole::<T>(stream, 1, &images), whole::<T>(stream, 2, &results));
            let out = Array::full(stream, T::of(9.0), &filter);
            with_memory(stream, conv2d_weight_grad(stream, x.view(), g.view(), how, out.view())).map(|()| out)
        });
    }
}

#[test]
fn cudnn_makes_what_it_can_where_it_is_found() {
    let by_cudnn = |both: &Both, pass: ConvPass, case: &Case| {
        let stream = &both.cuda;
        let [x, w, y] =
            [case.images, case.filter(), case.results()].map(|shape| whole::<bf16>(stream, 1, &shape));
        let how = (case.window, case.groups);
        let conv = match pass {
            ConvPass::Forward => conv2d(stream, x.view(), w.view(), None, how, y.view()),
            ConvPass::InputGrad => conv2d_input_grad(stream, y.view(), w.view(), None, how, x.view()),
            ConvPass::WeightGrad => conv2d_weight_grad(stream, x.view(), y.view(), how, w.view()),
        };
        format!("{:?}", conv.expect("operands that fit")).contains("made: Library")
    };
    for both in both_ways() {
        let found = is_cudnn(&both.cuda);
        for pass in [ConvPass::Forward, ConvPass::InputGrad, ConvPass::WeightGrad] {
            let makes = |name: &str| {
                let case = CASES.iter().find(|case| case.name == name).expect("a case");
                by_cudnn(&both, pass, case)
            };
            assert_eq!(makes("many channels"), found, "{pass:?}");
            // As the library is slower, and as there is nothing to make.
            assert!(
                !makes("no images") && (pass != ConvPass::InputGrad || !makes("lenet first")),
                "{pass:?}"
            );
        }
    }
}

#[test]
fn convolutions_in_several_turns() {
    turns_of::<f32>();
    turns_of::<bf16>();
}

#[test]
fn a_workspace_that_is_too_small_is_refused() {
    let Some(Both { cuda, .. }) = both() else { return };
    let case = &CASES[1];
    let (x, w) = (whole::<f32>(&cuda, 1, &case.images), whole::<f32>(&cuda, 2, &case.filter()));
    let (memory, out) = (Array::full(&cuda, 0_f32, &[8]), whole::<f32>(&cuda, 4, &case.results()));
    for memory in [None, Some(memory.view())] {
        let conv = conv2d_input_grad(&cuda, out.view(), w.view(), None, (case.window, case.groups), x.view());
        let conv = conv.expect("operands that fit");
        // An algorithm of cuDNN may need none.
        let needed = conv.workspace();
        let result = conv.launch(memory);
        let refused = matches!(
            result.as_ref().map_err(Error::kind),
            Err(device::ErrorKind::InvalidArgument { argument: "workspace", .. })
        );
        assert_eq!(refused, needed > memory.map_or(0, |memory| memory.layout.elements()));
    }
}

fn maxima_of<T: Real, I: Real>() {
    let Some(both) = both() else { return };
    for &(window, [count, h, w], [oh, ow]) in MAX {
        if max_pool2d_index_dtype(&window) != I::DTYPE {
            continue;
        }
        let (planes, places) = ([count, h, w], [count, oh, ow]);
        let run = |stream: &Stream| {
            let x = whole::<T>(stream, 1, &planes);
            let (out, index) =
                (Array::full(stream, T::default(), &places), Array::full(stream, I::default(), &places));
            max_pool2d(stream, x.view(), window, out.view(), index.view()).map(|()| (out, index))
        };
        both.same(("max_pool2d", window, T::DTYPE), |stream| run(stream).map(|(out, _)| out));
        both.same(("its index", window, T::DTYPE), |stream| run(stream).map(|(_, index)| index));
        both.same(("max_pool2d_grad", window, T::DTYPE), |stream| {
            let (_, index) = run(stream)?;
            let (g, out) = (whole::<T>(stream, 2, &places), Array::full(stream, T::of(9.0), &planes));
            max_pool2d_grad(stream, g.view(), index.view(), window, out.view()).map(|()| out)
        });
        both.same(("max_pool2d_pick", window, T::DTYPE), |stream| {
            let (_, index) = run(stream)?;
            let (x, out) = (whole::<T>(stream, 2, &planes), Array::full(stream, T::of(9.0), &places));
            max_pool2d_pick(stream, x.view(), index.view(), window, out.view()).map(|()| out)
        });
    }
}

#[test]
fn maxima() {
    maxima_of::<f32, u8>();
    maxima_of::<f64, u8>();
    maxima_of::<f32, i64>();
    maxima_of::<f64, i64>();
    maxima_of::<bf16, u8>();
    maxima_of::<f16, i64>();
}

#[test]
fn maxima_of_nan_and_infinities() {
    let Some(both) = both() else { return };
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let elements = [1.0, nan, -inf, -inf, nan, 2.0, -inf, -inf, inf, inf, 3.0, 3.0, -0.0, 0.0, 3.0, 1.0];
    let window = MAX[0].0;
    let run = |stream: &Stream| {
        let x = Array::new(stream, &elements, &[1, 4, 4]);
        let (out, index) = (Array::full(stream, 0_f32, &[1, 2, 2]), Array::full(stream, 9_u8, &[1, 2, 2]));
        max_pool2d(stream, x.view(), window, out.view(), index.view()).map(|()| (out, index))
    };
    both.same("maxima", |stream| run(stream).map(|(out, _)| out));
    both.same("indices", |stream| run(stream).map(|(_, index)| index));
    let found = run(&both.cuda).and_then(|(_, index)| index.try_vec());
    assert_eq!(found.expect("a result"), [2, 0, 0, 0]);
}

fn means_of<T: Real>() {
    let Some(both) = both() else { return };
    for &(means, [count, h, w], [oh, ow]) in MEANS {
        let (planes, places) = ([count, h, w], [count, oh, ow]);
        both.same(("avg_pool2d", means, T::DTYPE), |stream| {
            let (x, out) = (whole::<T>(stream, 1, &planes), Array::full(stream, T::of(9.0), &places));
            avg_pool2d(stream, x.view(), means, out.view()).map(|()| out)
        });
        both.same(("avg_pool2d_grad", means, T::DTYPE), |stream| {
            let (g, out) = (whole::<T>(stream, 1, &places), Array::full(stream, T::of(9.0), &planes));
            avg_pool2d_grad(stream, g.view(), means, out.view()).map(|()| out)
        });
    }
}

#[test]
fn means() {
    means_of::<f32>();
    means_of::<f64>();
    means_of::<bf16>();
    means_of::<f16>();
}

#[test]
fn running_statistics_have_the_bits_of_the_cpu() {
    let Some(both) = both() else { return };
    for momentum in [Some(0.1), Some(1.0), None] {
        for which in 0..2 {
            both.same((momentum, which), |stream| {
                let vector = |seed| Array::new(stream, &numbers::<f32>(seed, 700), &[700]);
                let (running, batch) = ([vector(1), vector(2)], [vector(3), vector(4)]);
                let count = Array::full(stream, 2_i64, &[]);
                let moved = running.each_ref().map(Array::view);
                let batch = batch.each_ref().map(Array::view);
                follow_statistics(stream, moved, count.view(), batch, 1.25, momentum)?;
                assert_eq!(count.try_vec()?, [3]);
                let [mean, var] = running;
                Ok(if which == 0 { mean } else { var })
            });
        }
    }
}

fn normal_of<T: Real>() {
    let Some(both) = both() else { return };
    let tolerance = 10.0 * T::UNIT;
    for &[n, c, size] in SHAPES {
        for (training, affine, activation) in [
            (true, true, Activation::None),
            (true, false, Activation::None),
            // A ReLU only where both devices have the same bits before it.
            (false, true, Activation::Relu),
            (false, false, Activation::Relu),
            (false, false, Activation::None),
        ] {
            let shape = [n, c, size];
            let run = |stream: &Stream| {
                let array = |seed, shape: &[usize]| {
                    let elements = numbers::<T>(seed, shape.iter().product());
                    Array::new(stream, &elements, shape)
                };
                let (x, g) = (array(1, &shape), array(2, &shape));
                let vector = |seed| Array::new(stream, &numbers::<T::Computed>(seed, c), &[c]);
                let mean = vector(3);
                let var = Array::full(stream, T::Computed::of(2.0), &[c]);
                let (weight, bias) = (vector(4), vector(5));
                let (out, grad) = (array(6, &shape), array(6, &shape));
                let (grad_weight, grad_bias) = (vector(6), vector(6));
                let norm = ChannelNorm {
                    mean: mean.view(),
                    var: var.view(),
                    weight: affine.then(|| weight.view()),
                    bias: affine.then(|| bias.view()),
                    eps: 1e-2,
                    training,
                    activation,
                };
                let bytes = batch_norm_workspace(stream, &shape);
                let space = Array::full(stream, 0xff_u8, &[bytes]);
                batch_norm(stream, x.view(), norm, Some(space.view()), out.view())?;
                let grads = [grad.view(), grad_weight.view(), grad_bias.view()];
                batch_norm_grad(stream, x.view(), g.view(), norm, Some(space.view()), grads)?;
                Ok((vec![mean, var, grad_weight, grad_bias], vec![out, grad]))
            };
            for part in 0..4 {
                both.close(
                    tolerance,
                    ("of channels", shape, training, affine, activation, part, T::DTYPE),
                    |stream| Ok(run(stream)?.0.swap_remove(part)),
                );
            }
            // The value, and its gradient.
            for part in 0..2 {
                both.close(tolerance, (shape, training, affine, activation, part, T::DTYPE), |stream| {
                    Ok(run(stream)?.1.swap_remove(part))
                });
            }
        }
    }
}

#[test]
fn normal_channels() {
    normal_of::<f32>();
    normal_of::<f64>();
    normal_of::<bf16>();
    normal_of::<f16>();
}
