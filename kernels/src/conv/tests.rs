//! Convolutions against loops over everything that they sum, in every shape of window.

use device::{Error, ErrorKind};

use super::*;
use crate::testing::{Array, bits, cpu, values, values_f32};

pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) images: [usize; 4],
    /// Filters of all groups.
    pub(crate) filters: usize,
    pub(crate) groups: usize,
    pub(crate) window: Window,
}

impl Case {
    const fn new(name: &'static str, images: [usize; 4], filters: usize, window: Window) -> Case {
        Case { name, images, filters, groups: 1, window }
    }

    const fn groups(self, groups: usize) -> Case {
        Case { groups, ..self }
    }

    pub(crate) fn filter(&self) -> [usize; 4] {
        let [kh, kw] = self.window.kernel;
        [self.filters, self.images[1] / self.groups, kh, kw]
    }

    pub(crate) fn results(&self) -> [usize; 4] {
        let [n, _, h, w] = self.images;
        let [oh, ow] = self.window.places("test", [h, w]).expect("a window that fits");
        [n, self.filters, oh, ow]
    }
}

const fn window(kernel: [usize; 2], stride: [usize; 2], padding: [usize; 2], dilation: [usize; 2]) -> Window {
    Window { kernel, stride, padding, dilation }
}

pub(crate) const CASES: &[Case] = &[
    Case::new("one pixel", [1, 1, 1, 1], 1, window([1, 1], [1, 1], [0, 0], [1, 1])),
    Case::new("lenet first", [3, 1, 28, 28], 6, window([5, 5], [1, 1], [2, 2], [1, 1])),
    Case::new("lenet second", [3, 6, 14, 14], 16, window([5, 5], [1, 1], [0, 0], [1, 1])),
    Case::new("pointwise", [2, 5, 6, 7], 9, window([1, 1], [1, 1], [0, 0], [1, 1])),
    Case::new("pointwise strided", [2, 5, 6, 7], 9, window([1, 1], [2, 3], [0, 0], [1, 1])),
    Case::new("pointwise padded", [2, 3, 4, 5], 2, window([1, 1], [1, 1], [1, 2], [1, 1])),
    Case::new("patches", [2, 3, 8, 12], 5, window([2, 4], [2, 4], [0, 0], [1, 1])),
    Case::new("patches of a line", [3, 4, 5, 70], 3, window([1, 7], [1, 7], [0, 0], [1, 1])),
    Case::new("many patches", [5, 20, 34, 36], 6, window([2, 2], [2, 2], [0, 0], [1, 1])),
    Case::new("patches that are images", [7, 30, 3, 2], 9, window([3, 2], [1, 1], [0, 0], [1, 1])),
    Case::new("patches that leave a rest", [2, 3, 7, 9], 5, window([2, 2], [2, 2], [0, 0], [1, 1])),
    Case::new("stem", [2, 3, 15, 18], 8, window([7, 7], [2, 2], [3, 3], [1, 1])),
    Case::new("uneven", [2, 4, 9, 11], 6, window([3, 2], [2, 1], [1, 0], [1, 3])),
    Case::new("dilated", [1, 2, 12, 10], 3, window([3, 3], [1, 2], [2, 4], [2, 3])),
    Case::new("padding beyond the image", [2, 2, 2, 3], 3, window([3, 3], [1, 1], [4, 5], [1, 1])),
    Case::new("many channels", [6, 70, 5, 5], 40, window([3, 3], [1, 1], [1, 1], [1, 1])),
    Case::new("many, strided", [5, 33, 9, 11], 40, window([3, 2], [2, 3], [1, 1], [1, 2])),
    Case::new("many filters", [1, 20, 12, 12], 70, window([3, 3], [1, 1], [2, 0], [1, 1])),
    Case::new("many taps", [7, 2, 20, 24], 20, window([10, 8], [10, 8], [0, 0], [1, 1])),
    Case::new("many places", [9, 20, 20, 21], 17, window([3, 3], [1, 1], [1, 1], [1, 1])),
    Case::new("many, grouped", [2, 64, 6, 7], 48, window([3, 3], [1, 1], [1, 1], [1, 1])).groups(2),
    Case::new("wide", [1, 3, 40, 70], 9, window([3, 3], [1, 1], [1, 1], [1, 1])),
    Case::new("few, large", [2, 5, 70, 71], 10, window([3, 3], [1, 1], [1, 1], [1, 1])),
    Case::new("few, one row", [2, 2, 67, 130], 4, window([2, 5], [1, 1], [0, 6], [1, 1])),
    Case::new("few, pointwise", [1, 3, 64, 68], 20, window([1, 1], [1, 1], [0, 0], [1, 1])),
    Case::new("groups", [2, 6, 7, 8], 9, window([3, 3], [1, 1], [1, 1], [1, 1])).groups(3),
    Case::new("grouped strided", [3, 4, 9, 8], 4, window([2, 3], [2, 2], [1, 1], [1, 1])).groups(2),
    Case::new("depthwise", [2, 5, 9, 21], 5, window([3, 3], [1, 1], [1, 1], [1, 1])).groups(5),
    Case::new("depthwise strided", [5, 3, 11, 10], 3, window([5, 3], [2, 2], [2, 1], [1, 2])).groups(3),
    Case::new("depthwise, several filters", [9, 3, 7, 18], 6, window([3, 2], [1, 1], [0, 1], [1, 1]))
        .groups(3),
    Case::new("many images", [300, 2, 5, 4], 3, window([3, 2], [1, 1], [1, 1], [1, 1])),
    Case::new("no images", [0, 2, 5, 5], 3, window([3, 3], [1, 1], [1, 1], [1, 1])),
];

/// Launches a convolution that needs no workspace.
fn launch(conv: Result<Conv2d<'_>>) -> Result<()> {
    conv?.launch(None)
}

/// Calls `body(result, filter, image)` with the elements that meet.
fn for_products(case: &Case, mut body: impl FnMut(usize, usize, usize)) {
    let ([images, c, h, w], [_, filters, oh, ow]) = (case.images, case.results());
    let ([_, per_group, kh, kw], Window { stride, padding, dilation, .. }) = (case.filter(), case.window);
    for n in 0..images {
        for f in 0..filters {
            let group = f / (filters / case.groups);
            for (y, x) in (0..oh).flat_map(|y| (0..ow).map(move |x| (y, x))) {
                for cg in 0..per_group {
                    for (i, j) in (0..kh).flat_map(|i| (0..kw).map(move |j| (i, j))) {
                        let at_h = (y * stride[0] + i * dilation[0]).checked_sub(padding[0]);
                        let at_w = (x * stride[1] + j * dilation[1]).checked_sub(padding[1]);
                        if let (Some(at_h), Some(at_w)) = (at_h, at_w)
                            && at_h < h
                            && at_w < w
                        {
                            let channel = group * per_group + cg;
                            body(
                                ((n * filters + f) * oh + y) * ow + x,
                                ((f * per_group + cg) * kh + i) * kw + j,
                                ((n * c + channel) * h + at_h) * w + at_w,
                            );
                        }
                    }
                }
            }
        }
    }
}

fn count(shape: [usize; 4]) -> usize {
    shape.iter().product()
}

#[track_caller]
fn close(name: &str, found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{name}");
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!((f - e).abs() <= 1e-11 * e.abs().max(1.0), "{name}, element {i}: {f} instead of {e}");
    }
}

#[test]
fn all_three_maps_are_the_sums_that_they_say() {
    let stream = cpu(1).default_stream();
    for case in CASES {
        let (images, filter, results) = (case.images, case.filter(), case.results());
        let (x, w, g) = (values(1, count(images)), values(2, count(filter)), values(3, count(results)));
        let bias = values(4, images[1].max(case.filters));
        let mut y: Vec<f64> =
            (0..count(results)).map(|i| bias[i / (results[2] * results[3]) % results[1]]).collect();
        let mut x_grad: Vec<f64> =
            (0..count(images)).map(|i| bias[i / (images[2] * images[3]) % images[1]]).collect();
        let mut w_grad = vec![0.0; count(filter)];
        for_products(case, |result, filter, image| {
            y[result] += w[filter] * x[image];
            x_grad[image] += w[filter] * g[result];
            w_grad[filter] += x[image] * g[result];
        });
        let array = |values: &[f64], shape: [usize; 4]| Array::new(&stream, values, &shape);
        let (x, w, g) = (array(&x, images), array(&w, filter), array(&g, results));
        let out = |shape: [usize; 4]| Array::full(&stream, f64::NAN, &shape);
        let (out_y, out_x, out_w) = (out(results), out(images), out(filter));
        let biases = [case.filters, images[1]].map(|len| Array::new(&stream, &bias[..len], &[len]));
        let how = (case.window, case.groups);
        let [of_y, of_x] = biases.each_ref().map(|bias| Some(bias.view()));
        launch(conv2d(&stream, x.view(), w.view(), of_y, how, out_y.view())).expect("a launch");
        launch(conv2d_input_grad(&stream, g.view(), w.view(), of_x, how, out_x.view())).expect("a launch");
        launch(conv2d_weight_grad(&stream, x.view(), g.view(), how, out_w.view())).expect("a launch");
        close(case.name, &out_y.to_vec(), &y);
        close(case.name, &out_x.to_vec(), &x_grad);
        close(case.name, &out_w.to_vec(), &w_grad);
    }
}

#[test]
fn threads_do_not_show() {
    let larger = Case::new("larger", [5, 8, 40, 36], 12, window([3, 3], [1, 1], [1, 1], [1, 1]));
    let filters = Case::new("one image", [1, 64, 30, 30], 48, window([3, 3], [1, 1], [1, 1], [1, 1]));
    let colours = Case::new("colours", [1, 3, 128, 128], 16, window([1, 1], [1, 1], [0, 0], [1, 1]));
    for case in CASES.iter().chain([&larger, &filters, &colours]) {
        let (images, filter, results) = (case.images, case.filter(), case.results());
        let run = |threads: usize| {
            let stream = cpu(threads).default_stream();
            let array =
                |seed, shape: [usize; 4]| Array::new(&stream, &values_f32(seed, count(shape)), &shape);
            let (x, w, g) = (array(1, images), array(2, filter), array(3, results));
            let (out_y, out_x, out_w) = (array(4, results), array(4, images), array(4, filter));
            let how = (case.window, case.groups);
            launch(conv2d(&stream, x.view(), w.view(), None, how, out_y.view())).expect("a launch");
            launch(conv2d_input_grad(&stream, g.view(), w.view(), None, how, out_x.view()))
                .expect("a launch");
            launch(conv2d_weight_grad(&stream, x.view(), g.view(), how, out_w.view())).expect("a launch");
            [out_y, out_x, out_w].map(|out| bits(&out.to_vec()))
        };
        let one = run(1);
        for threads in [2, 5] {
            assert_eq!(run(threads), one, "{} on {threads} threads", case.name);
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let stream = cpu(1).default_stream();
    let array = |shape: &[usize]| Array::full(&stream, 0_f32, shape);
    let (x, w, y) = (array(&[2, 4, 5, 5]), array(&[6, 2, 3, 3]), array(&[2, 6, 3, 3]));
    let three = Window::new([3, 3]);
    let run = |x: &Array<f32>, w: &Array<f32>, y: &Array<f32>, window, groups| {
        launch(conv2d(&stream, x.view(), w.view(), None, (window, groups), y.view()))
    };
    assert!(run(&x, &w, &y, three, 2).is_ok());
    assert!(matches!(
        run(&x, &w, &y, three, 1).as_ref().map_err(Error::kind),
        Err(ErrorKind::ShapeMismatch { .. })
    ));
    assert!(matches!(
        run(&x, &w, &y, three, 0).as_ref().map_err(Error::kind),
        Err(ErrorKind::ShapeMismatch { .. })
    ));
    assert!(matches!(
        run(&x, &w, &y, Window::new([2, 3]), 2).as_ref().map_err(Error::kind),
        Err(ErrorKind::ShapeMismatch { .. })
    ));
    assert!(matches!(
        run(&x, &w, &array(&[2, 6, 4, 3]), three, 2).as_ref().map_err(Error::kind),
        Err(ErrorKind::ShapeMismatch { .. })
    ));
    let still = Window { stride: [0, 1], ..three };
    assert!(matches!(
        run(&x, &w, &y, still, 2).as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { argument: "stride", .. })
    ));
    let turned = array(&[2, 4, 5, 5]).with(|layout| layout.transpose("test", 2, 3).expect("axes"));
    assert!(matches!(
        run(&turned, &w, &y, three, 2).as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { .. })
    ));
    let short = array(&[5]);
    let result = launch(conv2d(&stream, x.view(), w.view(), Some(short.view()), (three, 2), y.view()));
    assert!(matches!(result.as_ref().map_err(Error::kind), Err(ErrorKind::ShapeMismatch { .. })));
}
