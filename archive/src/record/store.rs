//! Where files go, and how they appear all at once.

use super::Error;
use object_store::ObjectStore;
use object_store::buffered::BufWriter;
use object_store::path::Path as Key;
use parquet::arrow::async_writer::AsyncFileWriter;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use url::Url;

/// A folder of this machine, or a store of objects.
#[derive(Debug, Clone)]
pub enum Store {
    /// A folder. A file has another name until it is finished.
    Folder(PathBuf),
    /// A store, and the prefix in it. An upload appears when it is complete.
    Objects(Arc<dyn ObjectStore>, Key),
}

/// A file that is being written.
pub struct Open {
    /// Takes the bytes.
    pub bytes: Box<dyn AsyncFileWriter>,
    local: Option<Local>,
}

/// A file of a folder. The lock says that its writer lives. It goes with the process, however that ends.
struct Local {
    lock: File,
    now: PathBuf,
    later: PathBuf,
}

impl Store {
    /// A place by its path or URL. Options of a store come from the environment, such as `AWS_REGION`.
    ///
    /// # Errors
    /// [`Error::Place`] if it is neither.
    pub fn parse(to: &str) -> Result<Self, Error> {
        let error = |reason: String| Error::Place { url: to.to_owned(), reason };
        if !to.contains("://") {
            return Ok(Self::Folder(to.into()));
        }
        let url = Url::parse(to).map_err(|fault| error(fault.to_string()))?;
        if url.scheme() == "file" {
            return url.to_file_path().map(Self::Folder).map_err(|()| error("it has a host".into()));
        }
        let (store, prefix) =
            object_store::parse_url_opts(&url, variables()).map_err(|fault| error(fault.to_string()))?;
        Ok(Self::Objects(store.into(), prefix))
    }

    /// Begins a file.
    ///
    /// # Errors
    /// If the folder or the file cannot be made.
    pub fn create(&self, path: &str) -> Result<Open, Error> {
        match self {
            Self::Folder(root) => {
                let later = root.join(path);
                let [new, now] =
                    ["new", "open"].map(|state| root.join(format!("{path}.{state}-{}", std::process::id())));
                let failed = || Error::system(format!("{} cannot be made", now.display()));
                later.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed())?;
                // Another recording takes a file with the second name and no lock for abandoned. Where the file system
                // has no locks, each is. What was traced is for this user alone.
                let lock = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).map_err(failed())?;
                let _ = lock.try_lock();
                fs::rename(&new, &now).map_err(failed())?;
                let file = lock.try_clone().map_err(failed())?;
                let bytes = Box::new(tokio::fs::File::from_std(file));
                Ok(Open { bytes, local: Some(Local { lock, now, later }) })
            }
            Self::Objects(store, prefix) => {
                let key = path.split('/').fold(prefix.clone(), |key, part| key.join(part));
                Ok(Open { bytes: Box::new(BufWriter::new(Arc::clone(store), key)), local: None })
            }
        }
    }
}

/// What the environment says of stores: variables with the names that their own programs take. They have lower-case
/// names for their options.
pub fn variables() -> impl Iterator<Item = (String, String)> {
    of_stores(std::env::vars_os())
}

fn of_stores(variables: impl Iterator<Item = (OsString, OsString)>) -> impl Iterator<Item = (String, String)> {
    let texts = variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let own = texts.filter(|(name, _)| ["AWS_", "AZURE_", "GOOGLE_"].iter().any(|prefix| name.starts_with(prefix)));
    own.map(|(name, value)| (name.to_ascii_lowercase(), value))
}

/// What is left to do with a file whose bytes are all written.
pub struct Finish(Option<Local>);

impl Open {
    /// The writer of the bytes, and what is to be done after it.
    pub fn into_parts(self) -> (Box<dyn AsyncFileWriter>, Finish) {
        (self.bytes, Finish(self.local))
    }
}

impl Finish {
    /// Says that the writer lives, by the time of the file.
    pub fn touch(&self) {
        if let Some(local) = &self.0 {
            // It only makes the end of an abandoned file less exact.
            let _ = local.lock.set_modified(std::time::SystemTime::now());
        }
    }

    /// Gives the file its name, once its bytes are on the disk.
    ///
    /// # Errors
    /// If the disk is full or gone.
    pub fn finish(self) -> Result<(), Error> {
        let Some(Local { lock, now, later }) = self.0 else { return Ok(()) };
        let failed = || Error::system(format!("{} cannot be finished", now.display()));
        lock.sync_all().map_err(failed())?;
        fs::rename(&now, &later).map_err(failed())?;
        // Its name too: what stands for it may be removed after this.
        later.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all()).map_err(failed())
    }
}

#[cfg(test)]
mod tests {
    use super::of_stores;

    /// A store takes `endpoint` and `token` as well as `aws_endpoint` and `aws_token`: what is meant for other programs
    /// is not for it.
    #[test]
    fn a_store_gets_its_own_variables_and_no_others() {
        let set = [
            ("AWS_REGION", "eu-west-1"),
            ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
            ("GOOGLE_SERVICE_ACCOUNT", "/key.json"),
            ("ENDPOINT", "http://elsewhere"),
            ("TOKEN", "secret"),
            ("ALLOW_HTTP", "true"),
            ("PROXY_URL", "http://elsewhere"),
            ("SKIP_SIGNATURE", "true"),
            ("MY_AWS_REGION", "x"),
            ("aws_region", "x"),
        ];
        let taken = of_stores(set.iter().map(|(name, value)| (name.into(), value.into()))).collect::<Vec<_>>();
        let expected = [
            ("aws_region", "eu-west-1"),
            ("azure_storage_account_name", "account"),
            ("google_service_account", "/key.json"),
        ];
        assert_eq!(taken, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}
