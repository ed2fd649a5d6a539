//! The settings of a running server, which reads them again on SIGHUP.
//!
//! Changes of settings under the heading [`LIVE`](super::settings::LIVE) take effect at once. Changes of other settings
//! are logged and have no effect. A file with a mistake changes nothing.

use fusee_cli::failure::Failure;

use super::settings::problem::SettingProblems;
use super::settings::{EffectiveSettings, GivenSettings, ServerSettings, is_live};
use fusee_cli::logging;

/// The settings in use, and the command line, which is needed to read the settings again.
pub struct Reloader<S> {
    given: GivenSettings<S>,
    current: EffectiveSettings<S>,
}

impl<S: ServerSettings> Reloader<S> {
    /// Reads the settings for the start of a server, and applies the filter of the log.
    pub fn new(given: GivenSettings<S>) -> Result<(Reloader<S>, S::Config), Failure> {
        let current = given.effective()?;
        let config = current.config()?;
        logging::set(current.settings.log());
        Ok((Reloader { given, current }, config))
    }

    /// Returns the settings in use.
    pub fn settings(&self) -> &S {
        &self.current.settings
    }

    /// Reads the settings again, and applies the filter of the log. Returns the new configuration if it has changed.
    pub fn again(&mut self) -> Option<S::Config> {
        match self.read() {
            Ok(config) => config,
            Err(problems) => {
                for problem in problems.0 {
                    tracing::error!("{problem}");
                }
                tracing::error!("the settings cannot be read again; those of before stay in force");
                None
            }
        }
    }

    fn read(&mut self) -> Result<Option<S::Config>, SettingProblems> {
        let new = self.given.effective()?;
        new.config()?;
        let (changed, fixed): (Vec<_>, Vec<_>) =
            self.current.changes(&new).into_iter().partition(|name| is_live::<S>(name));
        for name in fixed {
            tracing::warn!("{name} has another value now: that needs a restart");
        }
        if changed.is_empty() {
            tracing::info!("the settings were read again; nothing changes");
            return Ok(None);
        }
        let merged = self.current.with(&new, &changed);
        let config = merged.config()?;
        self.current = merged;
        logging::set(self.current.settings.log());
        for (name, value) in self.current.values() {
            let table = name.split('.').next();
            if changed.iter().any(|changed| Some(&**changed) == table) {
                tracing::debug!("{name} = {value} ({})", self.current.origin(&name));
            }
        }
        tracing::info!("the settings were read again; in force now: {}", changed.join(", "));
        Ok(Some(config))
    }
}
