use super::*;

fn nest(axes: &[(usize, [isize; 2])]) -> Loops<2> {
    Loops::from_axes(axes.iter().map(|&(size, strides)| LoopAxis { size, strides }))
}

#[test]
fn the_multiplier_of_an_axis_divides_by_its_size() {
    let sizes = (1..400).chain([1023, 1024, 1025, 65535, 65537, 1 << 30, (1 << 30) + 1, i32::MAX as usize]);
    for size in sizes {
        let axis = Axis::of(&LoopAxis { size, strides: [0] });
        let near = [0, 1, size - 1, size, size + 1, 7 * size, 7 * size + 6, i32::MAX as usize];
        for n in near.into_iter().filter(|&n| n <= i32::MAX as usize) {
            let n = n as u32;
            let high = ((u64::from(n) * u64::from(axis.magic)) >> 32) as u32;
            assert_eq!((high + n) >> axis.shift, n / axis.size, "{n} / {size}");
        }
    }
}

#[test]
fn parts_cover_a_nest_that_is_too_large() -> Result<()> {
    let nests = [
        nest(&[(5, [100, 1]), (7, [10, 10]), (3, [1, 100])]),
        nest(&[(2, [1 << 40, 0]), (3, [4, 9])]),
        nest(&[(2, [4000, 1]), (2, [1, 1000]), (2, [2, 2])].repeat(4)),
    ];
    for nest in nests {
        let mut found = Vec::new();
        parts_of(&nest, 20, [0; 2], &mut |part, at| {
            assert!(fits(part, 20), "{part:?}");
            found.extend((0..part.elements).map(|i| {
                let offsets = part.offsets(i);
                [at[0] + offsets[0], at[1] + offsets[1]]
            }));
            Ok(())
        })?;
        assert_eq!(found, (0..nest.elements).map(|i| nest.offsets(i)).collect::<Vec<_>>());
    }
    Ok(())
}
