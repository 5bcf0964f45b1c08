use super::*;

#[test]
fn places_follow_the_formula() -> Result<()> {
    let window = |kernel, stride, padding, dilation| Window {
        kernel: [kernel; 2],
        stride: [stride; 2],
        padding: [padding; 2],
        dilation: [dilation; 2],
    };
    for (window, size, places) in [
        (window(3, 1, 1, 1), 28, 28),
        (window(5, 1, 0, 1), 28, 24),
        (window(3, 2, 1, 1), 7, 4),
        (window(3, 1, 0, 2), 7, 3),
        (window(2, 2, 0, 1), 7, 3),
        (window(1, 1, 0, 1), 1, 1),
    ] {
        assert_eq!(window.places("test", [size; 2])?, [places; 2], "{window:?}");
    }
    assert!(window(4, 1, 0, 1).places("test", [3, 9]).is_err());
    assert!(window(0, 1, 0, 1).places("test", [3, 9]).is_err());
    assert!(window(2, 0, 0, 1).places("test", [3, 9]).is_err());
    assert!(window(2, 1, usize::MAX, 1).places("test", [3, 9]).is_err());
    Ok(())
}

#[test]
fn inside_is_where_the_tap_sees_the_image() {
    for (size, places) in [(5, 7), (4, 3), (1, 9)] {
        for (stride, padding, dilation) in [(1, 2, 1), (2, 1, 1), (3, 4, 2), (1, 0, 3)] {
            for tap in 0..4 {
                let (first, end) = inside(tap, (stride, padding, dilation), size, places);
                for place in 0..places {
                    let at = (place * stride + tap * dilation) as isize - padding as isize;
                    let sees = (0..size as isize).contains(&at);
                    assert_eq!((first..end).contains(&place), sees, "{size} {place} {tap}");
                }
            }
        }
    }
}
