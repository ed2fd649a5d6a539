//! Certificates for the tests of this crate, and of other crates that include this file.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

/// A directory with the files `ca`, `cert` and `key`. Dropping the value removes the directory.
pub struct Certificates(PathBuf);

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Certificates {
    /// Makes an authority, and a certificate for the loopback addresses that the authority has signed.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Certificates {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("fusee-tls-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).unwrap();
        let files = Certificates(directory);
        files.renew();
        files
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Replaces the content of a file atomically.
    pub fn put(&self, name: &str, text: &str) {
        let new = self.path("new");
        fs::write(&new, text).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(new, self.path(name)).unwrap();
    }

    /// Replaces the files by those of a new authority and a new certificate.
    pub fn renew(&self) {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
        let cert = CertificateParams::new(names).unwrap().signed_by(&key, &ca).unwrap();
        self.put("ca", &ca.pem());
        self.put("cert", &cert.pem());
        self.put("key", &key.serialize_pem());
    }
}
