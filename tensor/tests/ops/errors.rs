//! Each bad input against the error that names it; nothing is launched for it.

use device::{CpuConfig, Device, Error, ErrorKind, Result};
use tensor::{DType, Tensor, UnaryOp, grad};

use crate::on::device;

fn zeros(shape: &[usize], dtype: DType) -> Result<Tensor> {
    Tensor::zeros(shape, dtype, &device())
}

fn ints(values: &[i64]) -> Result<Tensor> {
    Tensor::from_slice(values, &[values.len()], &device())
}

macro_rules! refused {
    ($result:expr, $pattern:pat $(if $guard:expr)?) => {{
        let result = $result;
        assert!(matches!(result.as_ref().map_err(Error::kind), Err($pattern) $(if $guard)?), "{:?}", result.map(|_| ()));
    }};
}

#[test]
fn shapes_that_do_not_fit() -> Result<()> {
    let (a, b) = (zeros(&[2, 3], DType::F32)?, zeros(&[2, 4], DType::F32)?);
    refused!(a.add(&b), ErrorKind::ShapeMismatch { op: "add", lhs, rhs, .. } if **lhs == [2, 3] && **rhs == [2, 4]);
    refused!(a.matmul(&b), ErrorKind::ShapeMismatch { op: "matmul", lhs, rhs, .. } if **lhs == [2, 3] && **rhs == [2, 4]);
    refused!(a.lt(&b), ErrorKind::ShapeMismatch { op: "lt", .. });
    refused!(a.reshape(&[5]), ErrorKind::ShapeMismatch { op: "reshape", .. });
    refused!(a.expand(&[3, 3]), ErrorKind::ShapeMismatch { op: "expand", .. });
    refused!(a.sum_to(&[2, 2]), ErrorKind::ShapeMismatch { op: "sum_to", .. });
    refused!(a.sum_to(&[1, 2, 3]), ErrorKind::ShapeMismatch { op: "sum_to", .. });
    refused!(grad::unary(&a, UnaryOp::Relu, &b), ErrorKind::ShapeMismatch { op: "relu_grad", .. });
    refused!(grad::softmax(&a, &b, 0), ErrorKind::ShapeMismatch { op: "softmax_grad", .. });
    refused!(Tensor::cat(&[&a, &b], 0), ErrorKind::ShapeMismatch { op: "cat", .. });
    refused!(Tensor::cat(&[&a, &b.unsqueeze(0)?], 0), ErrorKind::ShapeMismatch { op: "cat", .. });
    refused!(Tensor::cat(&[], 0), ErrorKind::InvalidArgument { op: "cat", .. });
    refused!(Tensor::stack(&[&a, &b], 0), ErrorKind::ShapeMismatch { op: "stack", .. });
    refused!(a.linear(&b, None), ErrorKind::ShapeMismatch { op: "linear", .. });
    refused!(a.linear(&a, Some(&zeros(&[3], DType::F32)?)), ErrorKind::ShapeMismatch { op: "linear", .. });
    refused!(zeros(&[], DType::F32)?.matmul(&a), ErrorKind::InvalidArgument { op: "matmul", .. });
    refused!(zeros(&[], DType::F32)?.linear(&a, None), ErrorKind::InvalidArgument { op: "linear", .. });
    refused!(zeros(&[2], DType::F32)?.matmul(&zeros(&[3], DType::F32)?), ErrorKind::ShapeMismatch { .. });
    refused!(a.matmul(&zeros(&[2], DType::F32)?), ErrorKind::ShapeMismatch { op: "matmul", .. });
    refused!(zeros(&[5], DType::F32)?.matmul(&a), ErrorKind::ShapeMismatch { op: "matmul", .. });
    let batches = (zeros(&[2, 3, 4], DType::F32)?, zeros(&[5, 4, 3], DType::F32)?);
    refused!(batches.0.matmul(&batches.1), ErrorKind::ShapeMismatch { op: "matmul", .. });
    refused!(
        Tensor::from_slice(&[1.0_f32], &[2], a.device()),
        ErrorKind::ShapeMismatch { op: "from_slice", .. }
    );
    let of_bytes = |bytes: &[u8], shape: &[usize], dtype| Tensor::from_bytes(bytes, shape, dtype, a.device());
    refused!(of_bytes(&[0; 6], &[2], DType::F32), ErrorKind::ShapeMismatch { op: "from_bytes", .. });
    refused!(
        of_bytes(&[], &[usize::MAX / 2], DType::F64),
        ErrorKind::InvalidArgument { op: "from_bytes", .. }
    );
    refused!(of_bytes(&[1, 0, 2], &[3], DType::Bool), ErrorKind::InvalidArgument { op: "from_bytes", .. });
    refused!(a.unsqueeze(0)?.t(), ErrorKind::InvalidArgument { op: "t", .. });
    Ok(())
}

#[test]
fn types_that_do_not_fit() -> Result<()> {
    let (a, b) = (zeros(&[2], DType::F32)?, zeros(&[2], DType::F64)?);
    let matrices = (zeros(&[2, 2], DType::F32)?, zeros(&[2, 2], DType::F64)?);
    refused!(
        matrices.0.matmul(&matrices.1),
        ErrorKind::DTypeMismatch { op: "matmul", operand: "rhs", expected: DType::F32, got: DType::F64 }
    );
    refused!(a.add_(&b), ErrorKind::DTypeMismatch { op: "add_", .. });
    refused!(
        a.to_vec::<f64>(),
        ErrorKind::DTypeMismatch { op: "to_vec", expected: DType::F32, got: DType::F64, .. }
    );
    refused!(a.logical_not(), ErrorKind::DTypeMismatch { op: "logical_not", .. });
    refused!(
        Tensor::where_cond(&a, &a, &a),
        ErrorKind::DTypeMismatch { op: "where_cond", expected: DType::Bool, .. }
    );
    refused!(
        a.index_select(0, &b),
        ErrorKind::DTypeMismatch { op: "index_select", expected: DType::I64, .. }
    );
    refused!(a.unsqueeze(0)?.cross_entropy(&a), ErrorKind::DTypeMismatch { op: "cross_entropy", .. });
    let (int, truth) = (zeros(&[2], DType::I64)?, zeros(&[2], DType::Bool)?);
    refused!(int.exp(), ErrorKind::DTypeUnsupported { op: "exp", dtype: DType::I64, .. });
    refused!(int.softmax(0), ErrorKind::DTypeUnsupported { op: "softmax", .. });
    refused!(truth.matmul(&truth), ErrorKind::DTypeUnsupported { op: "matmul", fits: "numbers", .. });
    refused!(truth.add(&truth), ErrorKind::DTypeUnsupported { op: "add", dtype: DType::Bool, .. });
    refused!(truth.max(&[], false), ErrorKind::DTypeUnsupported { op: "max", .. });
    refused!(
        Tensor::arange(0, 2, 1, DType::Bool, a.device()),
        ErrorKind::DTypeUnsupported { op: "arange", .. }
    );
    Ok(())
}

#[test]
fn devices_that_differ() -> Result<()> {
    let here = zeros(&[2, 2], DType::F32)?;
    let device = Device::cpu_with(CpuConfig::default());
    let there = Tensor::zeros(&[2, 2], DType::F32, &device)?;
    let labels = Tensor::zeros(&[2], DType::I64, &device)?;
    let row = Tensor::zeros(&[3], DType::F32, &device)?;
    let before = device.sync_stats().launches;
    refused!(here.add(&there), ErrorKind::DeviceMismatch { op: "add", .. });
    refused!(here.matmul(&there), ErrorKind::DeviceMismatch { op: "matmul", .. });
    let names = here.add(&there).err().map(|error| error.to_string()).unwrap_or_default();
    for tensor in [&here, &there] {
        let (device, stream) = (tensor.device(), tensor.device().default_stream().id());
        // Where names are alike, the default streams tell devices apart.
        let alike = here.device().name() == there.device().name();
        let name = if alike { format!("{device} (default stream {stream})") } else { device.to_string() };
        assert!(names.contains(&name), "{names}");
    }
    refused!(here.copy_(&row), ErrorKind::ShapeMismatch { op: "copy_", .. });
    refused!(here.cross_entropy(&labels), ErrorKind::DeviceMismatch { op: "cross_entropy", .. });
    refused!(here.index_select(0, &labels), ErrorKind::DeviceMismatch { op: "index_select", .. });
    refused!(Tensor::cat(&[&here, &there], 0), ErrorKind::DeviceMismatch { op: "cat", .. });
    refused!(there.matmul(&here), ErrorKind::DeviceMismatch { op: "matmul", .. });
    assert_eq!(device.sync_stats().launches, before);
    Ok(())
}

#[test]
fn axes_that_do_not_exist() -> Result<()> {
    let x = zeros(&[2, 3], DType::F32)?;
    refused!(x.sum(&[2], false), ErrorKind::AxisOutOfRange { op: "sum", axis: 2, rank: 2 });
    refused!(x.sum(&[-3], false), ErrorKind::AxisOutOfRange { op: "sum", axis: -3, rank: 2 });
    refused!(x.sum(&[0, -2], false), ErrorKind::InvalidArgument { op: "sum", .. });
    refused!(x.softmax(2), ErrorKind::AxisOutOfRange { op: "softmax", .. });
    refused!(x.argmax(5, false), ErrorKind::AxisOutOfRange { op: "argmax", .. });
    refused!(x.transpose(0, 2), ErrorKind::AxisOutOfRange { op: "transpose", .. });
    refused!(x.permute(&[0, 2]), ErrorKind::AxisOutOfRange { op: "permute", .. });
    refused!(x.permute(&[0, 0]), ErrorKind::InvalidArgument { op: "permute", .. });
    refused!(x.permute(&[0]), ErrorKind::InvalidArgument { op: "permute", .. });
    refused!(x.unsqueeze(3), ErrorKind::AxisOutOfRange { op: "unsqueeze", .. });
    refused!(x.squeeze(2), ErrorKind::AxisOutOfRange { op: "squeeze", .. });
    refused!(x.narrow(0, 1, 2), ErrorKind::InvalidArgument { op: "narrow", .. });
    refused!(x.narrow(0, usize::MAX, 2), ErrorKind::InvalidArgument { op: "narrow", .. });
    refused!(x.select(1, 3), ErrorKind::IndexOutOfRange { op: "select", index: 3, size: 3, .. });
    refused!(x.pad_narrow(0, 2, 3), ErrorKind::InvalidArgument { op: "pad_narrow", .. });
    refused!(Tensor::stack(&[&x], 3), ErrorKind::AxisOutOfRange { op: "stack", axis: 3, .. });
    Ok(())
}

#[test]
fn indices_out_of_range() -> Result<()> {
    let x = zeros(&[2, 3], DType::F32)?;
    let out = |i: i64| ints(&[0, i]);
    refused!(
        x.index_select(0, &out(2)?),
        ErrorKind::IndexOutOfRange { op: "index_select", index: 2, size: 2, .. }
    );
    refused!(x.index_select(1, &out(-1)?), ErrorKind::IndexOutOfRange { index: -1, size: 3, .. });
    refused!(x.gather(0, &out(5)?.unsqueeze(0)?), ErrorKind::IndexOutOfRange { op: "gather", index: 5, .. });
    refused!(
        x.cross_entropy(&out(3)?),
        ErrorKind::IndexOutOfRange { op: "cross_entropy", operand: "label", index: 3, size: 3 }
    );
    refused!(x.cross_entropy(&out(i64::MIN)?), ErrorKind::IndexOutOfRange { index: i64::MIN, .. });
    refused!(x.index_add(0, &out(9)?, &x), ErrorKind::IndexOutOfRange { op: "index_add", index: 9, .. });
    refused!(
        x.scatter_add(1, &out(3)?.unsqueeze(0)?, &x),
        ErrorKind::IndexOutOfRange { op: "scatter_add", .. }
    );
    refused!(
        x.index_select(0, &ints(&[0])?.unsqueeze(0)?),
        ErrorKind::InvalidArgument { argument: "indices", .. }
    );
    refused!(x.cross_entropy(&ints(&[0])?), ErrorKind::ShapeMismatch { op: "cross_entropy", .. });
    refused!(x.gather(0, &ints(&[0])?), ErrorKind::ShapeMismatch { op: "gather", .. });
    let long = ints(&[0; 8])?.reshape(&[2, 4])?;
    refused!(x.gather(0, &long), ErrorKind::ShapeMismatch { op: "gather", .. });
    refused!(x.scatter_add(1, &long, &x), ErrorKind::ShapeMismatch { op: "scatter_add", .. });
    refused!(grad::gather(&x, 1, &long, &[2, 9], false), ErrorKind::ShapeMismatch { op: "gather_grad", .. });
    Ok(())
}

#[test]
fn indexed_sums_that_are_refused_launch_nothing() -> Result<()> {
    let device = Device::cpu_with(CpuConfig::default());
    let x = Tensor::zeros(&[2, 3], DType::F32, &device)?;
    let rows = Tensor::from_slice(&[0_i64, 9], &[2], &device)?;
    let each = rows.unsqueeze(0)?;
    device.start_recording();
    let refused = [
        x.index_add(0, &rows, &x),
        x.scatter_add(0, &each, &x),
        grad::index_select(&x, 0, &rows, 2),
        grad::gather(&x.narrow(0, 0, 1)?.narrow(1, 0, 2)?, 0, &each, &[2, 3], false),
    ];
    for result in refused {
        refused!(result, ErrorKind::IndexOutOfRange { index: 9, .. });
    }
    assert!(device.stop_recording().commands.is_empty());
    Ok(())
}

#[test]
fn pending_labels_out_of_range_are_reported_later() -> Result<()> {
    let device = Device::cpu_with(CpuConfig::default());
    let stream = device.new_stream()?;
    let logits = Tensor::zeros(&[2, 3], DType::F32, &device)?;
    let gate = stream.hold();
    let labels = stream.scope(|| Tensor::full(&[2], 7.0, DType::I64, &device))?;
    let launched = stream.scope(|| logits.cross_entropy(&labels));
    assert!(launched.is_ok());
    drop(gate);
    let (losses, _) = launched?;
    refused!(losses.to_vec::<f32>(), ErrorKind::Async { .. });
    assert_eq!(logits.to_vec::<f32>()?, [0.0; 6]);
    Ok(())
}

#[test]
fn a_tensor_that_cannot_be_read_prints_its_error() -> Result<()> {
    let device = Device::cpu_with(CpuConfig::default());
    let stream = device.new_stream()?;
    let gate = stream.hold();
    let picked = stream.scope(|| {
        let wrong = Tensor::full(&[1], 7.0, DType::I64, &device)?;
        Tensor::zeros(&[2], DType::F32, &device)?.index_select(0, &wrong)
    });
    drop(gate);
    let text = picked?.to_string();
    assert!(text.starts_with("tensor(<index_select on stream"), "{text}");
    Ok(())
}

#[test]
fn values_that_make_no_sense() -> Result<()> {
    let device = device();
    for step in [0.0, -1.0, f64::NAN] {
        let x = Tensor::arange(0.0, 1.0, step, DType::F32, &device);
        refused!(x, ErrorKind::InvalidArgument { op: "arange", argument: "step", .. });
    }
    refused!(Tensor::arange(0.0, f64::INFINITY, 1.0, DType::F32, &device), ErrorKind::InvalidArgument { .. });
    refused!(
        Tensor::arange(0, i64::MAX, 1, DType::I64, &device),
        ErrorKind::InvalidArgument { op: "arange", .. }
    );
    refused!(
        Tensor::zeros(&[usize::MAX, 2], DType::F32, &device),
        ErrorKind::InvalidArgument { op: "full", .. }
    );
    refused!(zeros(&[2], DType::F32)?.item::<f32>(), ErrorKind::InvalidArgument { op: "item", .. });
    Ok(())
}

/// Sizes beside a 0 are multiplied by ops, too.
#[test]
fn shapes_without_elements_that_are_too_large() -> Result<()> {
    const BIG: usize = 1 << 40;
    for shape in [&[0, usize::MAX][..], &[0, usize::MAX, usize::MAX], &[0, 1 << 62, 4], &[BIG, 0, BIG]] {
        refused!(zeros(shape, DType::F32), ErrorKind::InvalidArgument { op: "full", argument: "shape", .. });
        refused!(
            zeros(&[0, 1], DType::F32)?.reshape(shape),
            ErrorKind::InvalidArgument { op: "reshape", .. }
        );
    }
    refused!(
        zeros(&[0, 1, 1], DType::F32)?.expand(&[0, BIG, BIG]),
        ErrorKind::InvalidArgument { op: "expand", .. }
    );
    let tall = zeros(&[0, BIG, 1], DType::F32)?;
    assert_eq!(tall.flatten(0, 1)?.shape(), [0, 1]);
    let wide = zeros(&[1], DType::F32)?.expand(&[1, 1, BIG])?;
    refused!(tall.add(&wide), ErrorKind::ShapeMismatch { op: "add", .. });
    refused!(tall.lt(&wide), ErrorKind::ShapeMismatch { op: "lt", .. });
    let (none, weight) = (zeros(&[0, BIG, 0], DType::F32)?, zeros(&[BIG, 0], DType::F32)?);
    refused!(none.linear(&weight, None), ErrorKind::InvalidArgument { op: "linear", .. });
    refused!(weight.linear(&weight, None), ErrorKind::InvalidArgument { op: "linear", .. });
    refused!(none.matmul(&weight.t()?), ErrorKind::InvalidArgument { op: "matmul", .. });
    let half = zeros(&[1 << 59, 0], DType::F32)?;
    refused!(Tensor::cat(&[&half; 40], 0), ErrorKind::InvalidArgument { op: "cat", .. });
    refused!(Tensor::stack(&[&half; 3], 0), ErrorKind::InvalidArgument { op: "stack", .. });
    Ok(())
}

#[test]
fn ranges_that_do_not_fit_in_memory() -> Result<()> {
    let device = device();
    for dtype in [DType::F32, DType::F64, DType::I64, DType::U8] {
        let values = Tensor::arange(0.0, 1e15, 1.0, dtype, &device);
        refused!(values, ErrorKind::OutOfMemory { requested_bytes: 8_000_000_000_000_000, .. });
    }
    let values = Tensor::linspace(0.0, 1.0, 1 << 50, DType::F32, &device);
    refused!(values, ErrorKind::OutOfMemory { report, .. } if report.starts_with("linspace: 1125899906842624 values"));
    refused!(Tensor::linspace(0.0, 1.0, 1 << 62, DType::F32, &device), ErrorKind::InvalidArgument { .. });
    // The whole range of i64, in steps whose multiples do not fit.
    let far = Tensor::arange(i64::MIN, i64::MAX, i64::MAX / 2, DType::I64, &device)?.to_vec::<i64>()?;
    let step = i64::MAX / 2;
    assert_eq!(far, [i64::MIN, i64::MIN + step, i64::MIN + 2 * step, -2 + step, -2 + 2 * step]);
    Ok(())
}
