use device::ErrorKind;

use super::*;

fn cpu() -> Device {
    Device::cpu()
}

/// A file of the given format, as NumPy would write it but for the padding.
fn file(major: u8, header: &str, data: &[u8]) -> Vec<u8> {
    let length = header.len() as u32;
    let length = length.to_le_bytes();
    let length = if major == 1 { &length[..2] } else { &length[..] };
    [MAGIC, &[major, 0], length, header.as_bytes(), data].concat()
}

fn error(bytes: &[u8]) -> String {
    match parse("x.npy", bytes, &cpu()) {
        Err(error) if matches!(error.kind(), ErrorKind::Format { .. }) => error.to_string(),
        Err(error) => panic!("{error}"),
        Ok(array) => panic!("an array of shape {:?}", array.shape()),
    }
}

/// `np.save` of NumPy 2 wrote these bytes for `np.arange(6, dtype='<i8').reshape(2, 3)`, in C and in Fortran order.
#[test]
fn files_of_numpy() {
    let c = include_bytes!("../../../tests/data/arange_c.npy");
    let fortran = include_bytes!("../../../tests/data/arange_fortran.npy");
    for (bytes, contiguous) in [(&c[..], true), (&fortran[..], false)] {
        let array = parse("arange", bytes, &cpu()).unwrap();
        assert_eq!((array.shape(), array.is_contiguous()), (&[2, 3][..], contiguous));
        assert_eq!(array.to_vec::<i64>().unwrap(), [0, 1, 2, 3, 4, 5]);
        // Ours are NumPy's bytes.
        assert_eq!(to_bytes(&array).unwrap(), c);
    }
}

#[test]
fn every_type_and_shape_comes_back() {
    let shapes: [&[usize]; 6] = [&[], &[1], &[24], &[2, 3, 4], &[0, 7], &[1; 12]];
    for shape in shapes {
        for dtype in [DType::F16, DType::F32, DType::F64, DType::I64, DType::U8, DType::Bool] {
            let count: i64 = shape.iter().product::<usize>() as i64;
            let array = Tensor::arange(0, count, 1, DType::I64, &cpu()).unwrap();
            let array = array.reshape(shape).unwrap().to_dtype(dtype).unwrap();
            let bytes = to_bytes(&array).unwrap();
            assert_eq!((bytes.len() - count as usize * dtype.size_bytes()) % 64, 0);
            let back = parse("back", &bytes, &cpu()).unwrap();
            assert_eq!((back.shape(), back.dtype()), (shape, dtype));
            let values = |array: &Tensor| array.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
            assert_eq!(values(&back), values(&array));
        }
    }
    let bf16 = Tensor::ones(&[2], DType::BF16, &cpu()).unwrap();
    assert!(matches!(
        to_bytes(&bf16).as_ref().map_err(Error::kind),
        Err(ErrorKind::DTypeUnsupported { op: "npy", dtype: DType::BF16, .. })
    ));
    let special = [f64::NAN, -0.0, f64::INFINITY, f64::MIN_POSITIVE / 8.0];
    let array = Tensor::from_slice(&special, &[4], &cpu()).unwrap();
    let back = parse("back", &to_bytes(&array).unwrap(), &cpu()).unwrap().to_vec::<f64>().unwrap();
    assert_eq!(back.map_bits(), special.to_vec().map_bits());
}

trait MapBits {
    fn map_bits(&self) -> Vec<u64>;
}
impl MapBits for Vec<f64> {
    fn map_bits(&self) -> Vec<u64> {
        self.iter().map(|value| value.to_bits()).collect()
    }
}

#[test]
fn all_formats_and_spellings() {
    let one = 1.0_f32.to_le_bytes();
    for major in 1..=3 {
        for header in [
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }\n",
            "{\"shape\":(1,),\"descr\":\"<f4\",\"fortran_order\":True}",
            " { 'fortran_order' : False , 'descr':'<f4','shape': ( 1 , ) } ",
        ] {
            let array = parse("one", &file(major, header, &one), &cpu()).unwrap();
            assert_eq!((array.shape(), array.to_vec::<f32>().unwrap()), (&[1][..], vec![1.0]));
        }
    }
}

#[test]
fn elements_of_every_width_and_byte_order() {
    let array = |descr: &str, count: usize, data: &[u8]| {
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({count},), }}");
        parse("x.npy", &file(1, &header, data), &cpu())
    };
    let integers: [(&str, &[u8], [i64; 2]); 14] = [
        ("|i1", &[0x80, 0x7f], [-128, 127]),
        ("<i1", &[0xff, 1], [-1, 1]),
        ("<i2", &[0xfe, 0xff, 2, 1], [-2, 258]),
        (">i2", &[0xff, 0xfe, 1, 2], [-2, 258]),
        ("<u2", &[0xfe, 0xff, 2, 1], [65_534, 258]),
        (">u2", &[0xff, 0xfe, 1, 2], [65_534, 258]),
        ("<i4", &[0, 0, 0, 0x80, 1, 0, 0, 0], [-2_147_483_648, 1]),
        (">i4", &[0x80, 0, 0, 0, 0, 0, 0, 1], [-2_147_483_648, 1]),
        ("<u4", &[0, 0, 0, 0x80, 1, 0, 0, 0], [2_147_483_648, 1]),
        (">u4", &[0x80, 0, 0, 0, 0, 0, 0, 1], [2_147_483_648, 1]),
        ("<i8", &[0xff; 16], [-1, -1]),
        (">i8", &[0, 0, 0, 0, 0, 0, 1, 0, 0x80, 0, 0, 0, 0, 0, 0, 0], [256, i64::MIN]),
        ("<u8", &[3, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f], [3, i64::MAX]),
        (">u8", &[0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 9], [256, 9]),
    ];
    for (descr, data, expected) in integers {
        let array = array(descr, 2, data).unwrap();
        assert_eq!(array.to_vec::<i64>().unwrap(), expected, "{descr}");
    }
    for (descr, data) in
        [(">f4", &(-1.5_f32).to_be_bytes()[..]), (">f8", &(-1.5_f64).to_be_bytes()), (">f2", &[0xbe, 0])]
    {
        let array = array(descr, 1, data).unwrap().to_dtype(DType::F64).unwrap();
        assert_eq!(array.item::<f64>().unwrap(), -1.5, "{descr}");
    }
    let error = array("<u8", 1, &[0, 0, 0, 0, 0, 0, 0, 0x80]).unwrap_err();
    assert_eq!(error.to_string(), "x.npy: element 0 is 9223372036854775808, beyond the range of i64");
}

#[test]
fn what_is_wrong_is_said() {
    let good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
    let data = [0; 24];
    assert!(parse("good", &file(1, good, &data), &cpu()).is_ok());
    for (change, says) in [
        (("<f4", "|f4"), "\"|f4\""),
        (("<f4", "<f16"), "\"<f16\""),
        (("<f4", "|O"), "\"|O\""),
        (("<f4", "<c8"), "\"<c8\""),
        (("(2, 3)", "(2, 4)"), "24 bytes of elements for shape [2, 4]"),
        (("(2, 3)", "(2)"), "a comma"),
        (("(2, 3)", "(2, -3)"), "a size"),
        (("(2, 3)", "(99999999999999999999, 3)"), "a size"),
        (("(2, 3)", "(9999999999999999, 9999999999999999)"), "24 bytes"),
        (("(2, 3)", "2"), "'('"),
        (("False", "0"), "True or False"),
        (("'shape'", "'size'"), "unknown key \"size\""),
        (("'shape'", "'descr'"), "'"),
        (("'descr': '<f4', ", ""), "lacks"),
        (("'descr': '<f4'", "'descr': '<f4', 'descr': '<f4'"), "twice"),
        (("}", "} more"), "the end"),
        (("}", ""), "should be"),
        (("'<f4'", "'<f4"), "known are"),
    ] {
        let message = error(&file(1, &good.replace(change.0, change.1), &data));
        assert!(message.starts_with("x.npy") && message.contains(says), "{change:?}: {message}");
    }
    let many = format!("({})", "1, ".repeat(65));
    assert!(error(&file(1, &good.replace("(2, 3)", &many), &data)).contains("64 axes"));
    let truth = good.replace("<f4", "|b1").replace("(2, 3)", "(3,)");
    assert!(error(&file(1, &truth, &[0, 1, 2])).contains("element 2 is 2"));
    // Cut anywhere, or with a byte too many.
    let whole = file(2, good, &data);
    for end in 0..whole.len() {
        error(&whole[..end]);
    }
    assert!(error(&[&whole[..], &[0]].concat()).contains("25 bytes"));
    assert!(error(&file(4, good, &data)).contains("format 4"));
    assert!(error(&file(1, "{'descr': '\u{0}', ", &data)).contains("known are"));
    // Absurd sizes beside a 0 are an error of the tensor, not a panic.
    let absurd = good.replace("(2, 3)", "(0, 18446744073709551615, 4)");
    assert!(matches!(
        parse("x", &file(1, &absurd, &[]), &cpu()).as_ref().map_err(Error::kind),
        Err(ErrorKind::InvalidArgument { .. })
    ));
}

#[test]
fn files_are_written_and_missed() {
    let path = std::env::temp_dir().join(format!("streamgrad-npy-{}.npy", std::process::id()));
    assert!(matches!(load(&path, &cpu()).as_ref().map_err(Error::kind), Err(ErrorKind::Io { .. })));
    let array = Tensor::from_slice(&[1_u8, 2, 3, 4], &[2, 2], &cpu()).unwrap();
    // A view is written in the order of its own axes.
    save(&path, &array.t().unwrap()).unwrap();
    assert_eq!(load(&path, &cpu()).unwrap().to_vec::<u8>().unwrap(), [1, 3, 2, 4]);
    std::fs::remove_file(&path).unwrap();
}
