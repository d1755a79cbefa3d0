//! Where an archive lies.

use super::Failure;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};
use std::sync::Arc;
use url::Url;

/// A folder, or a place in an object store.
#[derive(Debug, Clone)]
pub struct Location {
    /// The store.
    pub store: Arc<dyn ObjectStore>,
    /// The store's own URL, by which engines know it.
    pub root: Url,
    /// Where in the store the archive begins.
    pub prefix: Path,
}

impl Location {
    /// An archive that is there. The credentials of a store are taken from the environment, as its own programs do.
    ///
    /// # Errors
    ///
    /// [`Failure::Location`], [`Failure::Folder`]
    pub fn open(location: &str) -> Result<Self, Failure> {
        match Url::parse(location) {
            Ok(url) if url.has_host() || url.scheme().len() > 1 => Self::by_url(location, &url),
            _ => {
                let folder = |source| Failure::Folder { path: location.into(), source };
                let path = std::fs::canonicalize(location).map_err(folder)?;
                let why = || Failure::Location {
                    location: location.to_string(),
                    why: "its path cannot be a URL".to_string(),
                };
                Self::by_url(location, &Url::from_directory_path(path).map_err(|()| why())?)
            }
        }
    }

    /// The same, of an archive that may begin only now.
    ///
    /// # Errors
    ///
    /// [`Failure::Location`], [`Failure::Folder`]
    pub fn create(location: &str) -> Result<Self, Failure> {
        if Url::parse(location).is_err() {
            std::fs::create_dir_all(location).map_err(|source| Failure::Folder { path: location.into(), source })?;
        }
        Self::open(location)
    }

    fn by_url(location: &str, url: &Url) -> Result<Self, Failure> {
        let (store, prefix) = object_store::parse_url_opts(url, crate::record::variables())
            .map_err(|error| Failure::Location { location: location.to_string(), why: error.to_string() })?;
        let mut root = url.clone();
        root.set_path("/");
        root.set_query(None);
        Ok(Self { store: store.into(), root, prefix })
    }

    /// All files, also behind one in a folder whose name a store cannot have. That one is an error.
    pub(crate) fn list(&self) -> Result<BoxStream<'static, object_store::Result<ObjectMeta>>, Failure> {
        let (store, prefix) = (Arc::clone(&self.store), self.prefix.clone());
        let list = move || store.list(Some(&prefix));
        if self.root.scheme() != "file" {
            return Ok(list());
        }
        // In tokio's context, the list of a folder ends at its first error (`LocalFileSystem::list` of object_store
        // 0.13). This thread has none.
        let failed = |source| object_store::Error::Generic { store: "LocalFileSystem", source };
        let thread = std::thread::Builder::new().spawn(list).map_err(|source| failed(source.into()))?;
        Ok(thread.join().map_err(|_| failed("listing a folder panicked".into()))?)
    }

    /// A path of the archive, as a path of the store.
    #[must_use]
    pub fn inside(&self, path: &Path) -> Path {
        self.prefix.parts().chain(path.parts()).collect()
    }

    /// A path of the store as a URL. That of a directory ends with a slash.
    #[must_use]
    pub fn url(&self, path: &Path, directory: bool) -> String {
        let mut url = self.root.clone();
        // It encodes what a URL cannot have.
        url.set_path(&format!("{path}{}", if directory { "/" } else { "" }));
        url.into()
    }
}
