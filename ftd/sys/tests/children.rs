//! What a process knows of its children. A process of its own, for other tests have children too: one test only.

use ft_sys::wait::{has_children, next_body, next_ended};
use std::process::Command;

#[test]
fn a_body_tells_whether_it_was_killed_and_an_empty_house_is_known() {
    let cases =
        [("exit 0", false), ("exit 1", false), ("kill -TERM $$", false), ("exit 137", true), ("kill -KILL $$", true)];
    for (how, killed) in cases {
        assert!(!has_children());
        let pid = Command::new("sh").args(["-c", how]).spawn().unwrap().id() as i32;
        assert!(has_children());
        let body = std::iter::repeat_with(next_body).flatten().next().unwrap();
        assert_eq!((body.pid, body.killed), (pid, killed), "{how}");
        assert!(has_children(), "a body is a child");
        assert_eq!(next_ended().map(|(pid, _)| pid), Some(pid));
    }
    assert!(next_body().is_none() && !has_children());
}
