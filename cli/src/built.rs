//! What this program was built without, for who asks for it.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Arguments that come with a feature of the package, and whether it is here.
const FEATURES: [(&str, &str, bool); 5] = [
    ("--btf", "btf", cfg!(feature = "btf")),
    ("--type", "btf", cfg!(feature = "btf")),
    ("--firefox", "firefox", cfg!(feature = "firefox")),
    ("--perfetto", "perfetto", cfg!(feature = "perfetto")),
    ("--svg", "svg", cfg!(feature = "svg")),
];

/// What to build for an argument that is not understood, if that is all that it lacks.
pub fn cure(error: &clap::Error) -> Option<String> {
    let (ErrorKind::UnknownArgument, Some(ContextValue::String(argument))) =
        (error.kind(), error.get(ContextKind::InvalidArg))
    else {
        return None;
    };
    lacks(argument).map(|feature| {
        format!("this program was built without {feature}, for {argument}: cargo install --path cli --all-features")
    })
}

fn lacks(argument: &str) -> Option<&'static str> {
    let is_asked = |(name, ..): &&(&str, &str, bool)| *name == argument;
    FEATURES.iter().find(is_asked).filter(|(_, _, is_here)| !is_here).map(|(_, feature, _)| *feature)
}

#[cfg(test)]
mod tests {
    use super::{FEATURES, cure};
    use crate::Cli;
    use clap::{Command, CommandFactory, Parser};

    fn has(command: &Command, argument: &str) -> bool {
        let is_it = |one: &clap::Arg| one.get_long().is_some_and(|long| argument == format!("--{long}"));
        command.get_arguments().any(is_it) || command.get_subcommands().any(|one| has(one, argument))
    }

    /// What the program has not is said to be missing, and what it has is there.
    #[test]
    fn arguments_are_there_or_their_feature_is_named() {
        for (argument, feature, is_here) in FEATURES {
            assert_eq!(has(&Cli::command(), argument), is_here, "{argument}");
            let command = ["profile", "convert", "read"].map(|command| ["perfweave", command, argument, "x"]);
            let cures = command.map(|words| Cli::try_parse_from(words).err().and_then(|error| cure(&error)));
            let named = cures.iter().flatten().all(|cure| cure.contains(&format!("without {feature}, for {argument}")));
            assert!(is_here || cures.iter().flatten().count() > 0 && named, "{argument}: {cures:?}");
        }
        assert_eq!(
            Cli::try_parse_from(["perfweave", "profile", "--nothing"]).err().and_then(|error| cure(&error)),
            None
        );
    }
}
