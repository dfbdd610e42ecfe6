//! Lists of nodes as Slurm writes them: `n[1-3,5],login`.

/// So many names a list has at most. Slurm itself makes none that is longer.
const MOST: usize = 1 << 16;

/// The names in a list, in its order; nothing where it is none.
pub fn names(list: &str) -> Option<Vec<String>> {
    let mut all = Vec::new();
    for entry in entries(list)? {
        expand("", entry, &mut all)?;
    }
    Some(all)
}

/// What stands between commas that are in no brackets.
fn entries(list: &str) -> Option<Vec<&str>> {
    let (mut entries, mut begun, mut inside) = (Vec::new(), 0, false);
    for (at, letter) in list.char_indices() {
        match letter {
            '[' if !inside => inside = true,
            ']' if inside => inside = false,
            '[' | ']' => return None,
            ',' if !inside => {
                entries.push(&list[begun..at]);
                begun = at + 1;
            }
            _ => {}
        }
    }
    entries.push(&list[begun..]);
    (!inside && entries.iter().all(|entry| !entry.is_empty())).then_some(entries)
}

/// The names of an entry, behind what stands before them all.
fn expand(before: &str, entry: &str, all: &mut Vec<String>) -> Option<()> {
    let Some((prefix, rest)) = entry.split_once('[') else {
        all.push(format!("{before}{entry}"));
        return (all.len() <= MOST).then_some(());
    };
    let (ranges, rest) = rest.split_once(']')?;
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        for number in value(first)?..=value(last)? {
            expand(&format!("{before}{prefix}{number:0width$}", width = first.len()), rest, all)?;
        }
    }
    Some(())
}

/// Of digits alone.
fn value(digits: &str) -> Option<u64> {
    (digits.len() <= DIGITS && digits.bytes().all(|digit| digit.is_ascii_digit())).then(|| digits.parse().ok())?
}

/// More digits at the end of a name are no number.
const DIGITS: usize = 18;

/// What stands before numbers, and their ranges; names without a number have an empty one.
type Group<'a> = (&'a str, Vec<(&'a str, &'a str)>);

/// The list of these names, in their order.
pub fn list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for name in names {
        let (prefix, number) = name.split_at(begins_number(name));
        let has_numbers = |ranges: &[(&str, &str)]| ranges.iter().all(|(first, _)| !first.is_empty());
        let same = |(other, ranges): &&mut Group<'_>| *other == prefix && !number.is_empty() && has_numbers(ranges);
        match groups.last_mut().filter(same) {
            Some((_, ranges)) => match ranges.last_mut().filter(|(_, last)| follows(last, number)) {
                Some((_, last)) => *last = number,
                None => ranges.push((number, number)),
            },
            None => groups.push((prefix, vec![(number, number)])),
        }
    }
    let texts: Vec<String> = groups.iter().map(|(prefix, ranges)| group(prefix, ranges)).collect();
    texts.join(",")
}

fn begins_number(name: &str) -> usize {
    let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    name.len() - digits.min(DIGITS)
}

/// Whether that is the next number, and the range of the two is written as they are.
fn follows(last: &str, number: &str) -> bool {
    let next = value(last).map(|last| format!("{:0width$}", last + 1, width = number.len()));
    let same = value(last).map(|last_value| format!("{:0width$}", last_value + 1, width = last.len()));
    next.as_deref() == Some(number) && same.as_deref() == Some(number)
}

fn group(prefix: &str, ranges: &[(&str, &str)]) -> String {
    if let [(one, last)] = ranges
        && one == last
    {
        return format!("{prefix}{one}");
    }
    let text = |(first, last): &(&str, &str)| if first == last { (*first).into() } else { format!("{first}-{last}") };
    format!("{prefix}[{}]", ranges.iter().map(text).collect::<Vec<String>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_slurm_writes_is_read_and_written_again() {
        for (text, expanded) in [
            ("n1", "n1"),
            ("n[1-3,5]", "n1 n2 n3 n5"),
            ("n[08-11]", "n08 n09 n10 n11"),
            ("n[8-11]", "n8 n9 n10 n11"),
            ("n[009,10]", "n009 n10"),
            ("login,n[1-2],gpu7", "login n1 n2 gpu7"),
            ("r1n[1-2],r2n[1-2]", "r1n1 r1n2 r2n1 r2n2"),
            ("a,b", "a b"),
            ("n1-ib,n2-ib", "n1-ib n2-ib"),
            ("[1-2]", "1 2"),
        ] {
            let names = names(text).unwrap();
            assert_eq!(names.join(" "), expanded, "{text}");
            assert_eq!(list(names.iter().map(String::as_str)), text);
        }
        assert_eq!(names("r[1-2]n[3-4]b").unwrap().join(" "), "r1n3b r1n4b r2n3b r2n4b");
    }

    #[test]
    fn names_keep_their_order_and_their_zeros() {
        for (names, text) in [
            (&["n3", "n1", "n2"][..], "n[3,1-2]"),
            (&["n09", "n9", "n10"], "n[09,9-10]"),
            (&["n99", "n100", "n0100"], "n[99-100,0100]"),
            (&["n1", "m2", "n2"], "n1,m2,n2"),
            (&["n", "n1"], "n,n1"),
            (&["n1", "n1"], "n[1,1]"),
            (&["n99999999999999999999"], "n99999999999999999999"),
        ] {
            assert_eq!(list(names.iter().copied()), text);
        }
    }

    #[test]
    fn what_is_no_list_has_no_names() {
        for text in ["", "n[1-3", "n1]", "n[[1]]", "n[a-b]", "n[1-]", ",", "n1,", "n[0-99999999]"] {
            assert_eq!(names(text), None, "{text}");
        }
    }
}
