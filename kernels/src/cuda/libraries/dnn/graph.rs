//! A convolution as the library's graph of operations.

use device::DType;
use device::cuda::ffi::dnn;
use dnn::cudnnBackendAttributeName_t as Name;
use dnn::cudnnBackendAttributeType_t as Type;
use dnn::cudnnBackendDescriptorType_t as Kind;
use dnn::{cudnnDataType_t as DataType, cudnnHandle_t as RawHandle};

use super::library::{Descriptor, Library, Outcome};
use super::{ALIGNMENT, BIAS};
use crate::cuda::libraries::{ConvForm, ConvPass};

/// The number of what a bias is added to.
const SUM: usize = BIAS + 1;

impl Library {
    /// The operation of a form.
    pub(super) fn graph(
        &'static self,
        handle: RawHandle,
        form: &ConvForm,
        dtype: DataType,
    ) -> Outcome<Descriptor> {
        let conv = self.descriptor(Kind::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?;
        conv.set(
            Name::CUDNN_ATTR_CONVOLUTION_COMP_TYPE,
            Type::CUDNN_TYPE_DATA_TYPE,
            &[DataType::CUDNN_DATA_FLOAT],
        )?;
        conv.set(
            Name::CUDNN_ATTR_CONVOLUTION_CONV_MODE,
            Type::CUDNN_TYPE_CONVOLUTION_MODE,
            &[dnn::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION],
        )?;
        conv.set(Name::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, Type::CUDNN_TYPE_INT64, &[2_i64])?;
        for (name, sizes) in [
            (Name::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, form.padding),
            (Name::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, form.padding),
            (Name::CUDNN_ATTR_CONVOLUTION_DILATIONS, form.dilation),
            (Name::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, form.stride),
        ] {
            conv.set(name, Type::CUDNN_TYPE_INT64, &sizes.map(|size| size as i64))?;
        }
        conv.finalize()?;
        let (kind, [alpha, beta, convolution, x, w, y]) = names(form.pass);
        let operation = self.descriptor(kind)?;
        operation.set(alpha, Type::CUDNN_TYPE_FLOAT, &[1.0_f32])?;
        operation.set(beta, Type::CUDNN_TYPE_FLOAT, &[0.0_f32])?;
        operation.set(convolution, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &[conv.raw])?;
        let mut operands = Vec::with_capacity(3);
        for number in 0..3 {
            let to_bias = form.bias && number == form.pass.made();
            // What a bias is added to is not rounded, and lies nowhere.
            let (number, dtype) = if to_bias { (SUM, DataType::CUDNN_DATA_FLOAT) } else { (number, dtype) };
            operands.push(self.tensor(number, dtype, form)?);
        }
        for (name, tensor) in [x, w, y].into_iter().zip(&operands) {
            operation.set(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &[tensor.raw])?;
        }
        operation.finalize()?;
        let mut operations = vec![operation];
        if form.bias {
            operations.push(self.sum(&operands[form.pass.made()], form, dtype)?);
        }
        let raw: Vec<_> = operations.iter().map(|operation| operation.raw).collect();
        let graph = self.descriptor(Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
        graph.set(Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, Type::CUDNN_TYPE_HANDLE, &[handle])?;
        graph.set(Name::CUDNN_ATTR_OPERATIONGRAPH_OPS, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &raw)?;
        graph.finalize()?;
        Ok(graph)
    }

    /// The sum of what was made and a bias for each of its channels.
    fn sum(&'static self, made: &Descriptor, form: &ConvForm, dtype: DataType) -> Outcome<Descriptor> {
        let (bias, out) = (self.tensor(BIAS, dtype, form)?, self.tensor(form.pass.made(), dtype, form)?);
        let add = self.descriptor(Kind::CUDNN_BACKEND_POINTWISE_DESCRIPTOR)?;
        let mode = dnn::cudnnPointwiseMode_t::CUDNN_POINTWISE_ADD;
        add.set(Name::CUDNN_ATTR_POINTWISE_MODE, Type::CUDNN_TYPE_POINTWISE_MODE, &[mode])?;
        let computed = DataType::CUDNN_DATA_FLOAT;
        add.set(Name::CUDNN_ATTR_POINTWISE_MATH_PREC, Type::CUDNN_TYPE_DATA_TYPE, &[computed])?;
        add.finalize()?;
        let operation = self.descriptor(Kind::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)?;
        for (name, part) in [
            (Name::CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, &add),
            (Name::CUDNN_ATTR_OPERATION_POINTWISE_XDESC, made),
            (Name::CUDNN_ATTR_OPERATION_POINTWISE_BDESC, &bias),
            (Name::CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &out),
        ] {
            operation.set(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &[part.raw])?;
        }
        operation.finalize()?;
        Ok(operation)
    }

    /// An operand: images, filters, results, [`BIAS`] or [`SUM`].
    fn tensor(&'static self, number: usize, dtype: DataType, form: &ConvForm) -> Outcome<Descriptor> {
        let made = form.pass.made();
        let (shape, strides) = match number {
            BIAS => {
                let channels = form.shapes[made][1];
                ([1, channels, 1, 1], [channels, 1, channels, channels])
            }
            SUM => (form.shapes[made], form.strides[made]),
            number => (form.shapes[number], form.strides[number]),
        };
        let tensor = self.descriptor(Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?;
        tensor.set(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &[dtype])?;
        for (name, sizes) in
            [(Name::CUDNN_ATTR_TENSOR_DIMENSIONS, shape), (Name::CUDNN_ATTR_TENSOR_STRIDES, strides)]
        {
            tensor.set(name, Type::CUDNN_TYPE_INT64, &sizes.map(|size| size as i64))?;
        }
        for (name, value) in
            [(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, number), (Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, ALIGNMENT)]
        {
            tensor.set(name, Type::CUDNN_TYPE_INT64, &[value as i64])?;
        }
        if number == SUM {
            tensor.set(Name::CUDNN_ATTR_TENSOR_IS_VIRTUAL, Type::CUDNN_TYPE_BOOLEAN, &[true])?;
        }
        tensor.finalize()?;
        Ok(tensor)
    }
}

/// The library's name of an element type of which it has all that is wanted here.
pub(super) fn data_type(dtype: DType) -> Option<DataType> {
    match dtype {
        DType::F32 => Some(DataType::CUDNN_DATA_FLOAT),
        DType::BF16 => Some(DataType::CUDNN_DATA_BFLOAT16),
        DType::F16 => Some(DataType::CUDNN_DATA_HALF),
        _ => None,
    }
}

/// What the library calls an operation, and its attributes: the two factors, the convolution, images, filters and results.
fn names(pass: ConvPass) -> (Kind, [Name; 6]) {
    match pass {
        ConvPass::Forward => (
            Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
            [
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
            ],
        ),
        ConvPass::InputGrad => (
            Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
            [
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
            ],
        ),
        ConvPass::WeightGrad => (
            Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
            [
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
            ],
        ),
    }
}
