use super::*;
use crate::ring::Fault;
use std::error::Error as _;
use std::fmt::{Debug, Display};
use std::io;

/// What Rust prints when `main` gives the error back, after `Error: `.
fn printed(error: &(impl Debug + Display)) -> String {
    let printed = format!("{error:?}");
    assert_eq!(printed, error.to_string());
    assert_eq!(format!("{error:#?}"), printed);
    printed
}

fn refused() -> Error {
    let source = io::Error::from_raw_os_error(libc::EACCES);
    let error = Error::new(ErrorKind::of(&source), "cannot look up tracepoint sched:sched_switch").because(source);
    error.hinting("mount it so that you may read it").about("tracepoint sched:sched_switch")
}

const REFUSED: &str =
    "cannot look up tracepoint sched:sched_switch: Permission denied (os error 13) (mount it so that you may read it)";

#[test]
fn a_main_that_gives_an_error_back_prints_what_it_says() {
    assert_eq!(printed(&refused()), REFUSED);
    assert_eq!(printed(&Error::new(ErrorKind::NotFound, "CPU 3 has no ring")), "CPU 3 has no ring");
    assert_eq!(printed(&Fault::Short { size: 8 }), Fault::Short { size: 8 }.to_string());
}

#[test]
fn an_error_has_parts() {
    let error = refused();
    assert_eq!(error.kind(), ErrorKind::Permission);
    assert_eq!(error.hint(), Some("mount it so that you may read it"));
    assert_eq!(error.event(), Some("tracepoint sched:sched_switch"));
    let source = error.source().unwrap().downcast_ref::<io::Error>().unwrap();
    assert_eq!((source.raw_os_error(), error.raw_os_error()), (Some(libc::EACCES), Some(libc::EACCES)));
    let bare = Error::forked();
    assert!(
        bare.hint().is_none() && bare.event().is_none() && bare.source().is_none() && bare.raw_os_error().is_none()
    );
    // A result that lends an event is returned for each event.
    assert_eq!(size_of::<Error>(), 8);
}

#[test]
fn repeated_failures_are_counted_in_the_message() {
    let error = |times| Error::fence_failed(ErrorKind::Degraded, io::Error::from_raw_os_error(libc::EPERM), times);
    assert_eq!(error(1).to_string(), "a fence failed: Operation not permitted (os error 1)");
    assert_eq!(error(9).to_string(), "a fence failed, the last of 9 times: Operation not permitted (os error 1)");
}

#[test]
fn errors_become_those_of_the_standard_library_and_back() {
    let error = io::Error::from(refused());
    assert_eq!((error.kind(), error.to_string().as_str()), (io::ErrorKind::PermissionDenied, REFUSED));
    assert_eq!(error.downcast::<Error>().unwrap().raw_os_error(), Some(libc::EACCES));
    // The kind decides if it says more than the source; otherwise the source decides.
    let system = |errno| Error::system("try", io::Error::from_raw_os_error(errno));
    let degraded = Error::wait(io::Error::from_raw_os_error(libc::EPIPE), 1);
    let new = |kind| Error::new(kind, "");
    for (error, kind, std) in [
        (system(libc::EPERM), ErrorKind::Permission, io::ErrorKind::PermissionDenied),
        (system(libc::ENOENT), ErrorKind::NotFound, io::ErrorKind::NotFound),
        (system(libc::ESRCH), ErrorKind::NotFound, io::ErrorKind::NotFound),
        (new(ErrorKind::InvalidInput), ErrorKind::InvalidInput, io::ErrorKind::InvalidInput),
        (system(libc::ENOSYS), ErrorKind::Unsupported, io::ErrorKind::Unsupported),
        (system(libc::EMFILE), ErrorKind::Limit, io::ErrorKind::QuotaExceeded),
        (system(libc::ENOMEM), ErrorKind::Limit, io::ErrorKind::QuotaExceeded),
        (system(libc::EBUSY), ErrorKind::Limit, io::ErrorKind::ResourceBusy),
        (new(ErrorKind::NotFound), ErrorKind::NotFound, io::ErrorKind::NotFound),
        (new(ErrorKind::Unsupported), ErrorKind::Unsupported, io::ErrorKind::Unsupported),
        (degraded, ErrorKind::Degraded, io::ErrorKind::BrokenPipe),
        (new(ErrorKind::Recording), ErrorKind::Recording, io::ErrorKind::InvalidData),
        (Error::forked(), ErrorKind::Forked, io::ErrorKind::Other),
        (system(libc::EEXIST), ErrorKind::System, io::ErrorKind::AlreadyExists),
    ] {
        assert_eq!((error.kind(), io::Error::from(error).kind()), (kind, std), "{kind:?}");
    }
}
