//! Every profile.
use ft_simulation::{profiles, run};

#[test]
fn calm() {
    let profile = profiles::named("calm").unwrap();
    for seed in 0..20 {
        let run = run(&profile.setup(seed), seed == 0);
        run.history.iter().for_each(|line| println!("{line}"));
        println!("{seed}: {:?} at {} after {} acts", run.result, run.at, run.acts);
        assert!(run.result.is_ok());
    }
}
