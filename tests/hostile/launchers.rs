//! Launchers of kernels with views of overlapping buffers, of the right shape and type mostly.

use streamgrad::DType;
use streamgrad::kernels::{
    self, Accumulate, Activation, AttentionGrads, AttentionInput, AttentionKind, AttentionResult, Bags,
    BinaryOp, ChannelNorm, CompareOp, Dropout, Extreme, Layout, Means, NormGrads, NormInput, NormRows,
    RandomKey, ReduceOp, Reduction, Rotation, Sampling, TotalNorm, UnaryOp, Update, View, Window,
};
use streamgrad::models::optim::Kind;
use streamgrad::optim::SgdOptions;

use crate::engine::Call;
use crate::world::World;

/// Views of these shapes and types in random buffers: `views!(world, x: dtype, &shape; ..)`.
macro_rules! views {
    ($world:ident, $($name:ident: $dtype:expr, $shape:expr, $layout:ident;)+) => {
        $(
            let buffer = $world.buffer();
            let layout = $world.$layout($shape);
            if !World::is_small(&[&layout]) {
                return Ok(());
            }
            let $name = $world.view(&buffer, $dtype, &layout);
        )+
    };
}

pub(crate) const CALLS: &[(&str, Call)] = &[
    ("fill", |w| {
        let (shape, dtype) = (w.random.shape(), w.random.dtype());
        views!(w, out: dtype, &shape, layout;);
        kernels::fill(&w.stream(), w.random.float().into(), out)
    }),
    ("copy", |w| {
        let (shape, from, to) = (w.random.shape(), w.random.dtype(), w.random.dtype());
        views!(w, x: from, &shape, layout; out: to, &shape, layout;);
        kernels::copy(&w.stream(), x, out)
    }),
    ("unary", |w| {
        let (shape, dtype, op) = (w.random.shape(), w.random.dtype(), *w.random.of(UnaryOp::ALL));
        views!(w, x: dtype, &shape, layout; g: dtype, &shape, layout; out: dtype, &shape, layout;);
        let x = if w.random.one_in(4) { out } else { x };
        match w.random.below(2) {
            0 => kernels::unary(&w.stream(), op, x, out),
            _ => kernels::unary_grad(&w.stream(), op, x, g, out),
        }
    }),
    ("binary", |w| {
        let (shape, dtype) = (w.random.shape(), w.random.dtype());
        let result = if w.random.one_in(2) { DType::Bool } else { dtype };
        views!(w, x: dtype, &shape, layout; y: dtype, &shape, layout; c: DType::Bool, &shape, layout;
            out: result, &shape, layout;);
        let (binary, compare) = (*w.random.of(BinaryOp::ALL), *w.random.of(CompareOp::ALL));
        let stream = w.stream();
        match w.random.below(4) {
            0 => kernels::binary(&stream, binary, x, y, out),
            1 => kernels::compare(&stream, compare, x, y, out),
            2 => kernels::where_cond(&stream, c, x, y, out),
            _ => kernels::logical_not(&stream, c, out),
        }
    }),
    ("matmul", |w| {
        let (dtype, [m, k, n]) = (w.random.float_dtype(), [(); 3].map(|()| w.random.below(12)));
        let batch: Vec<usize> = (0..w.random.below(3)).map(|_| 1 + w.random.below(3)).collect();
        let shape = |a: usize, b: usize| [&batch[..], &[a, b]].concat();
        views!(w, x: dtype, &shape(m, k), layout; y: dtype, &shape(k, n), layout; weight: dtype, &[k, n], layout;
            bias: dtype, &[n], layout; out: dtype, &shape(m, n), layout;);
        let stream = w.stream();
        let product = match w.random.below(4) {
            0 => kernels::matmul(&stream, x, y, out, Accumulate::Overwrite),
            1 => kernels::matmul(&stream, x, y, out, Accumulate::Add),
            2 => kernels::linear(&stream, x, weight, Some(bias), Activation::None, out),
            _ => kernels::linear(&stream, x, weight, Some(bias), Activation::Relu, out),
        };
        product?.launch(None)
    }),
    ("softmax", |w| {
        let (shape, dtype) = (w.random.shape(), w.random.float_dtype());
        let axis = w.random.axis(shape.len());
        views!(w, x: dtype, &shape, layout; g: dtype, &shape, layout; out: dtype, &shape, layout;);
        let stream = w.stream();
        match w.random.below(5) {
            0 => kernels::softmax(&stream, x, axis, out),
            1 => kernels::log_softmax(&stream, x, axis, out),
            2 => kernels::softmax_grad(&stream, x, g, axis, out),
            3 => kernels::log_softmax_grad(&stream, x, g, axis, out),
            _ => kernels::cumsum(&stream, x, axis, w.random.one_in(2), (None, out)),
        }
    }),
    ("reduce", |w| {
        let (shape, dtype) = (w.random.shape(), w.random.dtype());
        let axes: Vec<isize> = (0..w.random.below(3)).map(|_| w.random.axis(shape.len())).collect();
        let keep = w.random.one_in(2);
        let folded = |axis: usize| {
            let of = |&named: &isize| named.rem_euclid(shape.len().max(1) as isize) as usize;
            axes.is_empty() || axes.iter().map(of).any(|named| named == axis)
        };
        let shape_of = |folded: &dyn Fn(usize) -> bool| -> Vec<usize> {
            let sizes = shape.iter().enumerate().filter(|(at, _)| keep || !folded(*at));
            sizes.map(|(at, &size)| if folded(at) { 1 } else { size }).collect()
        };
        let made = shape_of(&folded);
        let axis = axes.first().copied().unwrap_or(0);
        let one = |at: usize| at as isize == axis.rem_euclid(shape.len().max(1) as isize);
        let best = shape_of(&one);
        views!(w, x: dtype, &shape, layout; out: dtype, &made, layout; index: DType::I64, &best, dense;);
        let op = *w.random.of(&[ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Prod, ReduceOp::Max]);
        let stream = w.stream();
        let bytes = kernels::reduce_workspace(&stream, x.layout, &axes)?;
        views!(w, memory: DType::U8, &[bytes], dense;);
        let memory = Some(memory).filter(|_| !w.random.one_in(8));
        match w.random.below(5) {
            0 => {
                let how = Reduction::Var { correction: w.random.float(), root: w.random.one_in(2) };
                kernels::reduce(&stream, how, x, &axes, memory, out)
            }
            1 => kernels::reduce(&stream, Reduction::LogSumExp, x, &axes, memory, out),
            // Also several axes, or none.
            2 => {
                let axes = if w.random.one_in(4) { &axes[..] } else { &[axis] };
                kernels::reduce(&stream, Reduction::Index(Extreme::Largest), x, axes, memory, index)
            }
            _ => kernels::reduce(&stream, op, x, &axes, memory, out),
        }
    }),
    ("index", |w| {
        let (shape, dtype) = (w.random.shape(), w.random.dtype());
        let rank = shape.len().max(1);
        let (axis, count) = (w.random.below(rank), w.random.below(7));
        let mut part = shape.clone();
        part.iter_mut().skip(axis).take(1).for_each(|size| *size = count);
        views!(w, whole: dtype, &shape, layout; some: dtype, &part, layout; indices: DType::I64, &[count], layout;
            each: DType::I64, &part, layout; other: dtype, &shape, layout;);
        let (stream, axis) = (w.stream(), axis as isize);
        let base = [None, Some(whole), Some(other)][w.random.below(3)];
        match w.random.below(4) {
            0 => kernels::index_select(&stream, "index_select", whole, axis, indices, some),
            1 => kernels::index_add(&stream, whole, base, axis, indices, some)?.launch(None),
            2 => kernels::gather(&stream, "gather", whole, axis, each, some),
            _ => kernels::scatter_add(&stream, whole, base, axis, each, some)?.launch(None),
        }
    }),
    ("embedding_bag", |w| {
        let (dtype, [rows, width, count]) =
            (w.random.float_dtype(), [5, 1 + w.random.below(5), 1 + w.random.below(4)]);
        let len = count * w.random.below(4);
        views!(w, table: dtype, &[rows, width], layout; indices: DType::I64, &[len], layout;
            offsets: DType::I64, &[count], layout; weights: dtype, &[len], layout; members: dtype, &[count], layout;
            bags: dtype, &[count, width], layout;);
        let [offsets, weights] = [offsets, weights].map(|view| Some(view).filter(|_| w.random.one_in(2)));
        let members = Some(members).filter(|_| w.random.one_in(2));
        let padding = w.random.one_in(3).then(|| w.random.size(5));
        let how = Bags { indices, offsets, count, weights, padding };
        let stream = w.stream();
        match w.random.below(3) {
            0 => kernels::embedding_bag(&stream, table, &how, members, bags),
            1 => kernels::embedding_bag_grad(&stream, bags, &how, members, table, None),
            _ => {
                kernels::embedding_bag_weights_grad(&stream, bags, table, &how, how.weights.unwrap_or(table))
            }
        }
    }),
    ("cross_entropy", |w| {
        let (dtype, [n, c]) = (w.random.float_dtype(), [(); 2].map(|()| w.random.below(8)));
        let computed = dtype.compute_dtype();
        views!(w, logits: dtype, &[n, c], layout; labels: DType::I64, &[n], layout; losses: computed, &[n], layout;
            log_sums: computed, &[n], dense; out: dtype, &[n, c], layout;);
        let out = if w.random.one_in(4) { logits } else { out };
        match w.random.below(2) {
            0 => kernels::cross_entropy(&w.stream(), logits, labels, losses, log_sums),
            _ => kernels::cross_entropy_grad(&w.stream(), logits, log_sums, labels, losses, out),
        }
    }),
    ("pool", |w| {
        let (dtype, window) = (w.random.float_dtype(), window(w));
        let image = [(); 2].map(|()| 1 + w.random.below(9));
        let places = window.places("hostile", image).unwrap_or([2, 3]);
        let planes = 1 + w.random.below(3);
        let (whole, pooled) = ([planes, image[0], image[1]], [planes, places[0], places[1]]);
        if pooled.iter().any(|&size| size > 64) {
            return Ok(());
        }
        let index_dtype = kernels::max_pool2d_index_dtype(&window);
        views!(w, x: dtype, &whole, dense; y: dtype, &pooled, dense; index: index_dtype, &pooled, dense;);
        let means = match w.random.below(2) {
            0 => Means::Adaptive,
            _ => Means::Sliding { window, count_include_pad: w.random.one_in(2), divisor: None },
        };
        let stream = w.stream();
        match w.random.below(5) {
            0 => kernels::max_pool2d(&stream, x, window, y, index),
            1 => kernels::max_pool2d_grad(&stream, y, index, window, x),
            2 => kernels::max_pool2d_pick(&stream, x, index, window, y),
            3 => kernels::avg_pool2d(&stream, x, means, y),
            _ => kernels::avg_pool2d_grad(&stream, y, means, x),
        }
    }),
    ("conv2d", |w| {
        let (dtype, window, groups) = (w.random.float_dtype(), window(w), 1 + w.random.below(3));
        let image = [(); 2].map(|()| 1 + w.random.below(9));
        let places = window.places("hostile", image).unwrap_or([2, 3]);
        let [n, c, f] =
            [w.random.below(3), groups * (1 + w.random.below(3)), groups * (1 + w.random.below(3))];
        let shapes = [
            [n, c, image[0], image[1]],
            [f, c / groups, window.kernel[0], window.kernel[1]],
            [n, f, places[0], places[1]],
        ];
        if shapes.iter().any(|shape| shape.iter().fold(1_usize, |n, &size| n.saturating_mul(size)) > 4096) {
            return Ok(());
        }
        views!(w, x: dtype, &shapes[0], dense; weight: dtype, &shapes[1], dense; y: dtype, &shapes[2], dense;
            bias: dtype, &[f], dense; back: dtype, &[c], dense;);
        let (stream, how) =
            (w.stream(), (window, if w.random.one_in(20) { w.random.size(4) } else { groups }));
        let conv = match w.random.below(4) {
            0 => kernels::conv2d(&stream, x, weight, None, how, y)?,
            1 => kernels::conv2d(&stream, x, weight, Some(bias), how, y)?.activated(Activation::Relu)?,
            2 => kernels::conv2d_input_grad(&stream, y, weight, Some(back), how, x)?,
            _ => kernels::conv2d_weight_grad(&stream, x, y, how, weight)?,
        };
        conv.launch(None)
    }),
    ("normalize", |w| {
        let (dtype, op) = (w.random.float_dtype(), "hostile");
        let rows = NormRows { groups: w.random.size(4), channels: w.random.size(4), inner: w.random.size(5) };
        let samples = 1 + w.random.below(3);
        let weights =
            if w.random.one_in(20) { w.random.below(9) } else { rows.groups.saturating_mul(rows.channels) };
        let elements = samples.saturating_mul(weights).saturating_mul(rows.inner);
        let count = samples.saturating_mul(rows.groups);
        let computed = dtype.compute_dtype();
        views!(w, x: dtype, &[elements], dense; g: dtype, &[elements], dense; out: dtype, &[elements], dense;
            weight: computed, &[weights], dense; bias: computed, &[weights], dense; mean: computed, &[count], dense;
            rstd: computed, &[count], dense; more: computed, &[weights], dense; memory: DType::U8, &[2048], dense;);
        let stream = w.stream();
        let [mean, weight, bias] = [mean, weight, bias].map(|view| Some(view).filter(|_| w.random.one_in(2)));
        if w.random.one_in(2) {
            return kernels::normalize(
                &stream,
                op,
                rows,
                NormInput { x, weight, bias },
                1e-5,
                out,
                (mean, rstd),
            );
        }
        let to = NormGrads { x: Some(out), weight: Some(more), bias, workspace: Some(memory) };
        kernels::normalize_grad(&stream, op, rows, g, (x, weight), (mean, rstd), to)
    }),
    ("batch_norm", |w| {
        let (dtype, c) = (w.random.float_dtype(), 1 + w.random.below(4));
        let shape = [1 + w.random.below(3), c, 1 + w.random.below(4), w.random.below(4)];
        let computed = dtype.compute_dtype();
        views!(w, x: dtype, &shape, dense; g: dtype, &shape, dense; out: dtype, &shape, dense;
            mean: computed, &[c], dense; var: computed, &[c], dense; weight: computed, &[c], dense;
            bias: computed, &[c], dense; a: computed, &[c], dense; b: computed, &[c], dense;
            count: DType::I64, &[], dense; memory: computed, &[64], dense;);
        let [weight, bias] = [weight, bias].map(|view| Some(view).filter(|_| w.random.one_in(2)));
        let norm = ChannelNorm {
            mean,
            var,
            weight,
            bias,
            eps: 1e-5,
            training: w.random.one_in(2),
            activation: *w.random.of(&[Activation::None, Activation::Relu]),
        };
        let (stream, memory) = (w.stream(), Some(memory).filter(|_| w.random.one_in(2)));
        match w.random.below(3) {
            0 => kernels::batch_norm(&stream, x, norm, memory, out),
            1 => kernels::batch_norm_grad(&stream, x, g, norm, memory, [out, a, b]),
            _ => kernels::follow_statistics(&stream, [a, b], count, [mean, var], w.random.float(), Some(0.1)),
        }
    }),
    ("attention", |w| {
        let (dtype, [s, t, d, e]) = (w.random.float_dtype(), [(); 4].map(|()| w.random.below(7)));
        let batch: Vec<usize> = (0..w.random.below(3)).map(|_| 1 + w.random.below(2)).collect();
        let shape = |more: &[usize]| [&batch[..], more].concat();
        let computed = dtype.compute_dtype();
        views!(w, q: dtype, &shape(&[s, d]), layout; k: dtype, &shape(&[t, d]), layout; v: dtype, &shape(&[t, e]), layout;
            mask: dtype, &shape(&[s, t]), layout; out: dtype, &shape(&[s, e]), layout;
            log_sums: computed, &shape(&[s]), dense; g: dtype, &shape(&[s, e]), layout;
            products: computed, &shape(&[s]), dense; dq: dtype, &shape(&[s, d]), layout;
            dk: dtype, &shape(&[t, d]), layout; dv: dtype, &shape(&[t, e]), layout;);
        let dropout = Dropout { p: 0.3, key: RandomKey { seed: 1, op: 2 } };
        let dropout = Some(dropout).filter(|_| w.random.one_in(2));
        let kind = AttentionKind { causal: w.random.one_in(2), scale: 0.5, dropout };
        let (input, result) = (
            AttentionInput { q, k, v, mask: Some(mask).filter(|_| w.random.one_in(2)) },
            AttentionResult { out, log_sums },
        );
        match w.random.below(2) {
            0 => kernels::attention(&w.stream(), kind, input, result),
            _ => {
                let to = AttentionGrads { q: dq, k: dk, v: dv };
                kernels::attention_grad(&w.stream(), kind, input, result, (g, products), to)
            }
        }
    }),
    ("norms of many", |w| {
        let dtype = w.random.float_dtype();
        let computed = dtype.compute_dtype();
        let sizes = [(); 3].map(|()| w.random.below(40));
        let parts = kernels::norm_parts(sizes);
        views!(w, a: dtype, &[sizes[0]], dense; b: dtype, &[sizes[1]], dense; c: dtype, &[sizes[2]], dense;
            parts: computed, &[parts], dense; norm: computed, &[], dense; scale: computed, &[], dense;
            found: computed, &[], dense; d: dtype, &[sizes[0]], dense;);
        let (stream, tensors) = (w.stream(), [a, b, c]);
        let mut pairs = tensors.map(|view| (view, view));
        if w.random.one_in(2) {
            pairs[0].0 = d;
        }
        match w.random.below(3) {
            0 => kernels::total_norm(&stream, &tensors, w.random.float(), TotalNorm { parts, norm, scale }),
            1 => kernels::scale_all(&stream, &pairs, scale),
            _ => kernels::unscale_all(&stream, &pairs, scale, [parts, found]),
        }
    }),
    ("optimizer_step", |w| {
        let (shape, dtype) = (w.random.shape(), *w.random.of(&[DType::F32, DType::F64]));
        views!(w, param: dtype, &shape, layout; grad: dtype, &shape, layout; state: dtype, &shape, layout;
            other: dtype, &shape, layout; more: dtype, &shape, layout;);
        let momentum = if w.random.one_in(2) { 0.9 } else { 0.0 };
        let options = SgdOptions { lr: 0.1, momentum, weight_decay: 0.1, ..SgdOptions::default() };
        let step = options.rule(2)?;
        let mut states = |view| if (momentum > 0.0) != w.random.one_in(9) { vec![view] } else { vec![] };
        let (first, second): (Vec<View<'_>>, Vec<View<'_>>) = (states(state), states(more));
        let updates = [
            Update { param, grad, master: None, states: first.into_iter().collect(), step },
            Update { param: other, grad, master: None, states: second.into_iter().collect(), step },
        ];
        kernels::optimizer_step(&w.stream(), &updates[..1 + w.random.below(2)])
    }),
    ("random", |w| {
        let (shape, dtype) = (w.random.shape(), w.random.dtype());
        let key = RandomKey { seed: w.random.next(), op: w.random.next() };
        views!(w, x: dtype, &shape, layout; out: dtype, &shape, layout;);
        let (stream, dropout) = (w.stream(), Dropout { p: w.random.float(), key });
        match w.random.below(5) {
            0 => kernels::uniform(&stream, key, w.random.float(), w.random.float(), out),
            1 => kernels::normal(&stream, key, w.random.float(), w.random.float(), out),
            2 => kernels::randint(&stream, key, w.random.next() as i64, w.random.next() as i64, out),
            3 => kernels::kept_weights(&stream, dropout, out),
            _ => kernels::dropout(&stream, dropout, x, out),
        }
    }),
    ("rotary and images", |w| {
        let (dtype, half) = (w.random.float_dtype(), w.random.below(4));
        let (rows, taps) = (w.random.below(5), w.random.below(6));
        let image =
            [1 + w.random.below(3), 1 + w.random.below(3), 1 + w.random.below(5), 1 + w.random.below(5)];
        views!(w, x: dtype, &[rows, 2 * half], layout; out: dtype, &[rows, 2 * half], layout;
            cos: dtype, &[rows, half], layout; sin: dtype, &[rows, half], layout;
            picture: DType::F32, &image, dense; made: DType::F32, &image, dense;
            matrices: DType::F32, &[image[0], 2, 3], dense; weights: DType::F32, &[taps], dense;);
        let rotation = Rotation { interleaved: w.random.one_in(2), inverse: w.random.one_in(2) };
        let sampling = *w.random.of(&[Sampling::Nearest, Sampling::Bilinear]);
        let stream = w.stream();
        match w.random.below(3) {
            0 => kernels::rotary(&stream, x, (cos, sin), rotation, out),
            1 => kernels::warp(&stream, picture, matrices, sampling, made),
            _ => kernels::blur(&stream, picture, weights, (0.5, 0.5), made),
        }
    }),
    ("new content", |w| w.refill()),
    ("a wild layout", |w| {
        let mut layout = Layout::contiguous(&[w.random.size(5), w.random.size(5), w.random.size(5)]);
        for _ in 0..6 {
            let (rank, size) = (layout.rank(), w.random.size(6));
            let (a, b) = (w.random.axis(rank), w.random.axis(rank));
            let shape: Vec<usize> = (0..w.random.below(5)).map(|_| w.random.size(6)).collect();
            let next = match w.random.below(7) {
                0 => layout.narrow("hostile", a, size, w.random.size(6)),
                1 => layout.transpose("hostile", a, b),
                2 => layout.unsqueeze("hostile", a),
                3 => layout.squeeze("hostile", a),
                4 => layout.expand("hostile", &shape),
                5 => layout.reshape("hostile", &shape).map(|found| found.unwrap_or(Layout::contiguous(&[1]))),
                _ => layout.permute("hostile", &shape),
            };
            layout = next.unwrap_or(layout);
            let _ = (layout.end(), layout.is_dense(), layout.is_uniform(), layout.is_channels_last());
            if World::is_small(&[&layout]) {
                let buffer = w.buffer();
                let view = w.view(&buffer, DType::U8, &layout);
                kernels::fill(&w.stream(), 1.0.into(), view)?;
            }
        }
        Ok(())
    }),
];

fn window(world: &mut World) -> Window {
    let random = &mut world.random;
    let odd = random.one_in(25);
    let mut pair = |least: usize, most: usize| {
        [(); 2].map(|()| if odd && random.one_in(4) { random.size(3) } else { least + random.below(most) })
    };
    let window = Window { kernel: pair(1, 3), stride: pair(1, 3), padding: pair(0, 2), dilation: pair(1, 2) };
    match window.kernel.iter().any(|&size| size > 1000 && size < 1 << 30) {
        // As many taps would be gone through.
        true => Window::new([2, 2]),
        false => window,
    }
}
