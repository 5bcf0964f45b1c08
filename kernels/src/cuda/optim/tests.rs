use super::*;

/// Also prints the program, for `tools/nvrtc-check`.
#[test]
fn every_known_rule_has_kernels() {
    println!("{}// end", source(&KNOWN, None));
    for known in KNOWN {
        let name = (known.name)();
        assert_eq!(
            source(&KNOWN, None).matches(&format!("RULE({name}, {})", known.states + 2)).count(),
            1,
            "{name}"
        );
    }
}
